// Refused: for numbers, strings and other objects call gather_object\(\)
#include <accelerate/accelerator.h>

std::vector<int> all(const accelerate::Accelerator& accelerator, int x) {
#ifdef MUST_FAIL
  return accelerator.gather(std::vector<int>{x});
#else
  return accelerate::gather_object(
      std::vector<int>{x}, accelerator.mesh().batch_group());
#endif
}
