// Refused: the optimizer must outlive its handle: give it a name
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accelerate/accelerator.h>

void prepare(accelerate::Accelerator& accelerator, torch::nn::Linear& net) {
#ifdef MUST_FAIL
  auto optimizer =
      accelerator.prepare(torch::optim::SGD(net->parameters(), 0.1));
#else
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto optimizer = accelerator.prepare(sgd);
#endif
  optimizer.step();
}
