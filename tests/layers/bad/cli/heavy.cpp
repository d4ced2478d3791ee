#include <accelerate/world.h>
