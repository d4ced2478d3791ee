// Refused: gather_for_metrics\(\) takes tensors, or a std::vector
#include <accelerate/accelerator.h>

std::vector<float> all(const accelerate::Accelerator& accelerator, float x) {
#ifdef MUST_FAIL
  return {accelerator.gather_for_metrics(x)};
#else
  return accelerator.gather_for_metrics(std::vector<float>{x});
#endif
}
