#include <accelerate/world.h>
ACCELERATE_API void patch_environment();
