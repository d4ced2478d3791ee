// The plain loop with a learning rate that warms up and then follows a cosine.
#include <accelerate/schedulers.h>

#include "task.h"

int main() {
  torch::manual_seed(0);
  accelerate::Accelerator accelerator;
  Net net;
  torch::optim::Adam adam(net->parameters(), 2e-2);
  const std::int64_t steps = 20 * 25 / accelerator.num_processes();
  accelerate::optim::LambdaLR cosine(
      adam, accelerate::optim::cosine_with_warmup(steps / 10, steps));
  auto [model, optimizer, scheduler, loader] = accelerator.prepare(
      net,
      adam,
      cosine,
      accelerate::DataLoader(
          training_data(), {.batch_size = 20, .shuffle = true}));
  for (int epoch = 0; epoch < 20; ++epoch) {
    for (auto& [points, values] : loader) {
      optimizer.zero_grad();
      const torch::Tensor loss = torch::mse_loss(model(points), values);
      accelerator.backward(loss);
      optimizer.step();
      scheduler.step();
    }
  }
  report(accelerator, net);
  accelerator.finish();
}
