// Refused: accumulate\(\) and no_sync\(\) take prepared models: pass what
#include <torch/nn/modules/linear.h>

#include <accelerate/accelerator.h>

void step(accelerate::Accelerator& accelerator, torch::nn::Linear& net) {
  auto model = accelerator.prepare(net);
#ifdef MUST_FAIL
  auto micro_step = accelerator.accumulate(net);
#else
  auto micro_step = accelerator.accumulate(model);
#endif
}
