// Refused: move a tensor with tensor\.to\(accelerator\.device\(\)\)
#include <accelerate/accelerator.h>

at::Tensor move(accelerate::Accelerator& accelerator, const at::Tensor& x) {
#ifdef MUST_FAIL
  return accelerator.prepare(x);
#else
  return x.to(accelerator.device());
#endif
}
