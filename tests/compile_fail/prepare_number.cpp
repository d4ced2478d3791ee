// Refused: prepare\(\) takes modules \(holders, shared_ptr, with_options\(\)\), optimizers
#include <torch/nn/modules/linear.h>

#include <accelerate/accelerator.h>

void prepare(accelerate::Accelerator& accelerator, torch::nn::Linear& net) {
#ifdef MUST_FAIL
  auto prepared = accelerator.prepare(net, 3);
#else
  auto prepared = accelerator.prepare(net);
#endif
}
