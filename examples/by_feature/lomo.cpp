// The plain loop with AdaLOMO: each parameter is updated during the backward,
// and its gradient is freed at once.
#include <accelerate/optimizers.h>

#include "task.h"

int main() {
  torch::manual_seed(0);
  accelerate::Accelerator accelerator;
  Net net;
  accelerate::optim::AdaLomo lomo(net->parameters());
  auto [model, optimizer, loader] = accelerator.prepare(
      net,
      lomo,
      accelerate::DataLoader(
          training_data(), {.batch_size = 20, .shuffle = true}));
  for (int epoch = 0; epoch < 20; ++epoch) {
    for (auto& [points, values] : loader) {
      const torch::Tensor loss = torch::mse_loss(model(points), values);
      accelerator.lomo_backward(loss, /*learning_rate=*/2e-2);
    }
  }
  int num_gradients = 0;
  for (const torch::Tensor& parameter : net->parameters())
    if (parameter.grad().defined()) ++num_gradients;
  accelerator.print(
      std::to_string(num_gradients) + " gradients are left in memory");
  expect(num_gradients == 0, "gradients must be freed at once");
  report(accelerator, net);
  accelerator.end_training();
}
