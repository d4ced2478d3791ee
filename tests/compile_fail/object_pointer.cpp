// Refused: a pointer means nothing on another rank: send the object itself, std::string for text
#include <accelerate/accelerator.h>

std::string name(const accelerate::Accelerator& accelerator, const char* mine) {
#ifdef MUST_FAIL
  return accelerator.broadcast_object(mine);
#else
  return accelerator.broadcast_object(std::string(mine));
#endif
}
