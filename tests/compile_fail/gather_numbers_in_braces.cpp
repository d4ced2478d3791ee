// Refused: for numbers, strings and other objects call gather_object\(\)
#include <accelerate/accelerator.h>

std::vector<double> all(const accelerate::Accelerator& accelerator, double x) {
#ifdef MUST_FAIL
  return accelerator.gather({x, x});
#else
  return accelerator.gather_object({x, x});
#endif
}
