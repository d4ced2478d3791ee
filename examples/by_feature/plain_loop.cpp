// The plain loop. Every other file in this directory adds one thing to it.
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
  for (int epoch = 0; epoch < 20; ++epoch) {
    for (auto& [points, values] : loader) {
      optimizer.zero_grad();
      const torch::Tensor loss = torch::mse_loss(model(points), values);
      accelerator.backward(loss);
      optimizer.step();
    }
  }
  accelerator.print(std::to_string(steps_taken(adam)) + " optimizer steps");
  expect(
      steps_taken(adam) == 20 * loader.size(),
      "there must be a step for each batch of this rank");
  report(accelerator, net);
  accelerator.end_training();
}
