// Accumulation where micro-batches hold different numbers of items (tokens that
// are not masked, say): given the number, backward() computes the gradient of
// the mean over all items of the window on all ranks. However samples are
// divided into batches, windows and ranks, the result is the same.
//
// usage: item_weights [BATCH_SIZE [GRADIENT_ACCUMULATION_STEPS]]
#include "task.h"

int main(int argc, char** argv) {
  const int batch_size = argc > 1 ? std::atoi(argv[1]) : 25;
  const int window = argc > 2 ? std::atoi(argv[2]) : 2;
  torch::manual_seed(0);
  accelerate::Accelerator accelerator({.gradient_accumulation_steps = window});
  Net net;
  torch::optim::Adam adam(net->parameters(), 2e-2);
  auto [model, optimizer, loader] = accelerator.prepare(
      net,
      adam,
      accelerate::DataLoader(
          training_data(), {.batch_size = batch_size, .shuffle = true}));
  for (int epoch = 0; epoch < 40; ++epoch) {
    for (auto& [points, values] : loader) {
      auto micro_step = accelerator.accumulate(model);
      optimizer.zero_grad();
      // Points near the border do not count.
      const torch::Tensor mask =
          (points.abs().amax(1, /*keepdim=*/true) < 1.9).to(torch::kFloat);
      const auto num_items = mask.sum().item<std::int64_t>();
      const torch::Tensor errors = torch::square(model(points) - values) * mask;
      const torch::Tensor loss =
          errors.sum() / std::max<std::int64_t>(num_items, 1);
      accelerator.backward(loss, {.num_items = num_items});
      optimizer.step();
    }
  }
  report(accelerator, net);
  accelerator.end_training();
}
