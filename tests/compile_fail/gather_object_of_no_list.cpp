// Refused: gather_object\(\) joins the ranks' lists: give it a std::vector
#include <accelerate/accelerator.h>

std::vector<int> all(const accelerate::Accelerator& accelerator, int x) {
#ifdef MUST_FAIL
  return accelerate::gather_object(x, accelerator.mesh().batch_group());
#else
  return accelerate::gather_object({x}, accelerator.mesh().batch_group());
#endif
}
