// The plain loop with Adam in one fused kernel; options and state are those of
// torch::optim::Adam.
#include <accelerate/optimizers.h>

#include "task.h"

// Whether a step changes parameters as torch::optim::Adam does.
bool steps_like_torch() {
  auto ours = torch::ones({100}).requires_grad_();
  auto theirs = torch::ones({100}).requires_grad_();
  ours.mutable_grad() = torch::linspace(-1, 1, 100);
  theirs.mutable_grad() = torch::linspace(-1, 1, 100);
  accelerate::optim::Adam({ours}, 1e-2).step();
  torch::optim::Adam({theirs}, 1e-2).step();
  return ours.allclose(theirs) && !ours.equal(torch::ones({100}));
}

int main() {
  torch::manual_seed(0);
  accelerate::Accelerator accelerator;
  Net net;
  accelerate::optim::Adam adam(net->parameters(), 1e-2);
  auto [model, optimizer, loader] = accelerator.prepare(
      net,
      adam,
      accelerate::DataLoader(
          training_data(), {.batch_size = 20, .shuffle = true}));
  for (int epoch = 0; epoch < 20; ++epoch) {
    for (auto& [points, values] : loader) {
      optimizer.zero_grad();
      const torch::Tensor loss = torch::mse_loss(model(points), values);
      accelerator.backward(loss);
      optimizer.step();
    }
  }
  expect(steps_like_torch(), "a step must be that of torch::optim::Adam");
  expect(
      steps_taken(adam) == 20 * loader.size(),
      "the state must have torch::optim::Adam's count of steps");
  report(accelerator, net);
  accelerator.end_training();
}
