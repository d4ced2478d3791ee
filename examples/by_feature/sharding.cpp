// The plain loop where each rank keeps only its shard of the parameters, of
// their gradients and of Adam's state.
#include "task.h"

int main() {
  torch::manual_seed(0);
  accelerate::Accelerator accelerator(
      {.parallel = {
           .fully_sharded = accelerate::FullyShardedDataParallelOptions()}});
  // With cpu_ram_efficient_loading only rank 0 would initialise values.
  Net net = accelerator.init_model([] { return Net(); });
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
  print_on_every_rank(
      accelerator,
      "holds " + std::to_string(num_elements(model)) + " elements");
  expect(
      sum_over_ranks(accelerator, num_elements(model)) == 129,
      "all ranks together must hold the model once");
  accelerator.save_model(model, "weights");  // full weights
  Net unsharded;
  accelerate::load_model(*unsharded, "weights");
  report(accelerator, unsharded);
  accelerator.end_training();
}
