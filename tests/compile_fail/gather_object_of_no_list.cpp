// Refused: gather_object\(\) joins the ranks' lists: give it a std::vector
#include <accelerate/accelerator.h>

std::vector<int> all(const accelerate::Accelerator& accelerator, int x) {
#ifdef MUST_FAIL
  return accelerator.gather_object(x);
#else
  return accelerator.gather_object({x});
#endif
}
