// The plain loop, saving after every epoch without waiting for the disk, and
// resuming from the newest complete checkpoint when it is started again.
#include "task.h"

int main() {
  accelerate::AcceleratorOptions options;
  options.project_configuration = {
      .project_dir = "checkpointing_run",
      .automatic_checkpoint_naming = true,
      .total_limit = 2};
  accelerate::Accelerator accelerator(options);
  torch::manual_seed(0);
  Net net;
  torch::optim::Adam adam(net->parameters(), 2e-2);
  auto [model, optimizer, loader] = accelerator.prepare(
      net,
      adam,
      accelerate::DataLoader(
          training_data(), {.batch_size = 20, .shuffle = true}));
  if (const auto newest = accelerator.latest_checkpoint()) {
    accelerator.print("resuming from " + newest->string());
    accelerator.load_state(*newest);
  }
  while (loader.epoch() < 20) {
    for (auto& [points, values] : loader) {
      optimizer.zero_grad();
      const torch::Tensor loss = torch::mse_loss(model(points), values);
      accelerator.backward(loss);
      optimizer.step();
    }
    accelerator.save_state({.asynchronous = true});
  }
  report(accelerator, net);
  accelerator.finish();
}
