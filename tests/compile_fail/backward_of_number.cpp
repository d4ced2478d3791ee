// Refused: backward\(\) takes the loss itself, not its value
#include <accelerate/accelerator.h>

void step(const accelerate::Accelerator& accelerator, const at::Tensor& loss) {
#ifdef MUST_FAIL
  accelerator.backward(loss.item<double>());
#else
  accelerator.backward(loss);
#endif
}
