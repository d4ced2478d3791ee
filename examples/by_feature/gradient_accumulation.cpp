// The plain loop with windows of four micro-steps: the gradient of 80 samples
// in the memory of 20. The last window of an epoch is shorter, and is divided
// by its true length.
#include "task.h"

int main() {
  torch::manual_seed(0);
  accelerate::Accelerator accelerator({.gradient_accumulation_steps = 4});
  Net net;
  torch::optim::Adam adam(net->parameters(), 2e-2);
  auto [model, optimizer, loader] = accelerator.prepare(
      net,
      adam,
      accelerate::DataLoader(
          training_data(), {.batch_size = 20, .shuffle = true}));
  for (int epoch = 0; epoch < 40; ++epoch) {
    for (auto& [points, values] : loader) {
      auto micro_step = accelerator.accumulate(model);
      optimizer.zero_grad();  // takes effect after a step only
      const torch::Tensor loss = torch::mse_loss(model(points), values);
      accelerator.backward(loss);
      optimizer.step();  // in the last micro-step of a window only
    }
  }
  accelerator.print(std::to_string(steps_taken(adam)) + " optimizer steps");
  expect(
      steps_taken(adam) == 40 * ((loader.size() + 3) / 4),
      "there must be a step for each window of four batches");
  report(accelerator, net);
  accelerator.end_training();
}
