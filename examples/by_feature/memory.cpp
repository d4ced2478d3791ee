// The plain loop with a batch size that fits: the function is called again with
// half the size until memory suffices on every rank.
#include <accelerate/memory.h>

#include "task.h"

int main() {
  torch::manual_seed(0);
  accelerate::Accelerator accelerator;
  std::int64_t last_size = 0;
  const auto train = [&](std::int64_t batch_size) {
    last_size = batch_size;
    accelerator.free_memory();
    accelerator.print("batches of " + std::to_string(batch_size));
    // Pretends that more than 64 samples do not fit.
    if (batch_size > 64) torch::empty({std::int64_t{1} << 58});
    Net net;
    torch::optim::Adam adam(net->parameters(), 1e-2);
    auto [model, optimizer, loader] = accelerator.prepare(
        net,
        adam,
        accelerate::DataLoader(
            training_data(), {.batch_size = batch_size, .shuffle = true}));
    for (int epoch = 0; epoch < 60; ++epoch) {
      for (auto& [points, values] : loader) {
        optimizer.zero_grad();
        const torch::Tensor loss = torch::mse_loss(model(points), values);
        accelerator.backward(loss);
        optimizer.step();
      }
    }
    report(accelerator, net);
  };
  accelerate::find_executable_batch_size(
      train,
      {.starting_batch_size = 128,
       .reduce_batch_size = accelerate::halve,
       .group = accelerator.world().group()});
  expect(last_size == 64, "the first batch size that fits must be found");
  accelerator.end_training();
}
