// Refused: for numbers, strings and other objects call broadcast_object\(\)
#include <accelerate/accelerator.h>

std::string name(
    const accelerate::Accelerator& accelerator,
    const std::string& mine) {
#ifdef MUST_FAIL
  return accelerator.broadcast(mine);
#else
  return accelerator.broadcast_object(mine);
#endif
}
