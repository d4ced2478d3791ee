#include <cstdio>

#include <ATen/Functions.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accelerate/accelerate.h>

int main() {
  accelerate::Accelerator accelerator;
  torch::nn::Linear net(2, 1);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  accelerator.backward(model(at::ones({4, 2})).mean());
  optimizer.step();
  std::printf("trained on %d\n", accelerator.num_processes());
  return 0;
}
