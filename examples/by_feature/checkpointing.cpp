// The plain loop, saving after every epoch without waiting for the disk, and
// resuming from the newest complete checkpoint when it is started again. An
// argument is the epoch after which to stop, as if the program were interrupted.
#include "task.h"

int main(int argc, char** argv) {
  const std::uint64_t last_epoch = argc > 1 ? std::stoul(argv[1]) : 20;
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
  if (accelerator.resume())
    accelerator.print("resuming in epoch {}", loader.epoch());
  while (loader.epoch() < last_epoch) {
    double last = 0;
    for (auto& [points, values] : loader) {
      optimizer.zero_grad();
      const torch::Tensor loss = torch::mse_loss(model(points), values);
      accelerator.backward(loss);
      optimizer.step();
      last = loss.item<double>();
    }
    accelerator.print(
        "epoch " + std::to_string(loader.epoch()) +
        ": loss of the last batch " + std::to_string(last));
    accelerator.save_state({.asynchronous = true});
  }
  expect(
      steps_taken(adam) ==
          static_cast<std::int64_t>(last_epoch) * loader.size(),
      "a resumed run must have taken the steps before it, too");
  report(accelerator, net);
  accelerator.end_training();
}
