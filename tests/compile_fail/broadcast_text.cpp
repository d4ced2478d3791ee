// Refused: for numbers, strings and other objects call broadcast_object\(\)
#include <accelerate/accelerator.h>

std::string name(
    const accelerate::Accelerator& accelerator,
    const std::string& mine) {
#ifdef MUST_FAIL
  return accelerate::broadcast(mine, accelerator.world().group());
#else
  return accelerate::broadcast_object(mine, accelerator.world().group());
#endif
}
