// The plain loop with LocalSGD: ranks average their weights every eight steps
// instead of their gradients at every step.
#include <accelerate/local_sgd.h>

#include "task.h"

int main() {
  torch::manual_seed(0);
  accelerate::Accelerator accelerator;
  Net net;
  torch::optim::Adam adam(net->parameters(), 1e-2);
  auto [model, optimizer, loader] = accelerator.prepare(
      net,
      adam,
      accelerate::DataLoader(
          training_data(), {.batch_size = 20, .shuffle = true}));
  accelerate::LocalSGD local_sgd(accelerator, model, {.local_sgd_steps = 8});
  int num_equal = 0;
  for (int epoch = 0; epoch < 20; ++epoch) {
    for (auto& [points, values] : loader) {
      optimizer.zero_grad();
      const torch::Tensor loss = torch::mse_loss(model(points), values);
      accelerator.backward(loss);
      optimizer.step();
      local_sgd.step();
    }
    if (has_equal_weights(accelerator, net)) ++num_equal;
  }
  local_sgd.finish();  // averages once more
  accelerator.print(
      "ranks had the same weights after " + std::to_string(num_equal) +
      " of 20 epochs");
  expect(
      has_equal_weights(accelerator, net),
      "ranks must have the same weights after they averaged");
  expect(
      num_equal < 20 || accelerator.num_processes() == 1,
      "ranks must have their own weights in between");
  accelerator.print("ranks have the same weights in the end");
  report(accelerator, net);
  accelerator.end_training();
}
