// The plain loop, which all ranks leave together as soon as one of them has
// seen a loss below 0.005.
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
  int last_epoch = 100;
  for (int epoch = 0; epoch < 100; ++epoch) {
    for (auto& [points, values] : loader) {
      optimizer.zero_grad();
      const torch::Tensor loss = torch::mse_loss(model(points), values);
      accelerator.backward(loss);
      optimizer.step();
      if (loss.item<double>() < 0.005) {
        print_on_every_rank(accelerator, "saw a loss below 0.005");
        accelerator.set_trigger();
      }
    }
    if (accelerator.check_trigger()) {
      print_on_every_rank(
          accelerator, "stopped after epoch " + std::to_string(epoch));
      last_epoch = epoch;
      break;
    }
  }
  expect(
      last_epoch < 100 &&
          sum_over_ranks(accelerator, last_epoch) ==
              last_epoch * accelerator.num_processes(),
      "all ranks must stop after the same epoch");
  report(accelerator, net);
  accelerator.end_training();
}
