// Refused: put numbers into one: torch::tensor\(x\)
#include <torch/types.h>

#include <accelerate/accelerator.h>

double sum(const accelerate::Accelerator& accelerator, double x) {
#ifdef MUST_FAIL
  return accelerator.reduce(x);
#else
  return accelerator.reduce(torch::tensor(x)).item<double>();
#endif
}
