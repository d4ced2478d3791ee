// The plain loop with gradients that travel between the ranks as bf16, half the
// bytes. CommHook::power_sgd sends even less.
#include "task.h"

int main() {
  torch::manual_seed(0);
  accelerate::Accelerator accelerator(
      {.parallel = {
           .replicate_options = {.comm_hook = accelerate::CommHook::bf16}}});
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
  report(accelerator, net);
  accelerator.finish();
}
