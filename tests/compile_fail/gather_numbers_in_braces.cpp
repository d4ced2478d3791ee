// Refused: for numbers, strings and other objects call gather_object\(\)
#include <accelerate/accelerator.h>

std::vector<double> all(const accelerate::Accelerator& accelerator, double x) {
#ifdef MUST_FAIL
  return accelerator.gather({x, x});
#else
  return accelerate::gather_object({x, x}, accelerator.mesh().batch_group());
#endif
}
