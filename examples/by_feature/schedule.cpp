// The plain loop with a learning rate that warms up and then follows a cosine.
#include <accelerate/schedulers.h>

#include "task.h"

int main() {
  torch::manual_seed(0);
  accelerate::Accelerator accelerator;
  Net net;
  torch::optim::Adam adam(net->parameters(), 2e-2);
  // 20 epochs of 25 batches, divided among the ranks.
  const int num_ranks = accelerator.num_processes();
  const std::int64_t steps = 20 * ((25 + num_ranks - 1) / num_ranks);
  accelerate::optim::LambdaLR cosine(
      adam, accelerate::optim::cosine_with_warmup(steps / 10, steps));
  auto [model, optimizer, scheduler, loader] = accelerator.prepare(
      net,
      adam,
      cosine,
      accelerate::DataLoader(
          training_data(), {.batch_size = 20, .shuffle = true}));
  double peak = 0;
  std::int64_t num_steps = 0, peak_step = 0;
  for (int epoch = 0; epoch < 20; ++epoch) {
    for (auto& [points, values] : loader) {
      optimizer.zero_grad();
      const torch::Tensor loss = torch::mse_loss(model(points), values);
      accelerator.backward(loss);
      optimizer.step();
      scheduler.step();
      ++num_steps;
      if (optimizer.learning_rate() > peak) {
        peak = optimizer.learning_rate();
        peak_step = num_steps;
      }
    }
  }
  accelerator.print(
      "learning rate " + std::to_string(peak) + " after " +
      std::to_string(peak_step) + " steps, " +
      std::to_string(optimizer.learning_rate()) + " in the end");
  expect(
      peak == 2e-2 && peak_step == steps / 10 &&
          optimizer.learning_rate() < 1e-9,
      "the rate must rise for a tenth of the steps, and end at 0");
  report(accelerator, net);
  accelerator.end_training();
}
