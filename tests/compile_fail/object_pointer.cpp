// Refused: a pointer means nothing on another rank: send the object itself, std::string for text
#include <accelerate/accelerator.h>

std::string name(const accelerate::Accelerator& accelerator, const char* mine) {
#ifdef MUST_FAIL
  return accelerate::broadcast_object(mine, accelerator.world().group());
#else
  return accelerate::broadcast_object(
      std::string(mine), accelerator.world().group());
#endif
}
