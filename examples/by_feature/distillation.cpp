// The plain loop with a second model that has its own settings: a frozen
// teacher, sharded over the ranks, whose outputs the student learns.
#include "task.h"

// Trains the teacher as a single process would.
Net trained_teacher() {
  Net net;
  torch::optim::Adam adam(net->parameters(), 1e-2);
  std::vector<std::int64_t> all(500);
  for (std::size_t i = 0; i < all.size(); ++i)
    all[i] = static_cast<std::int64_t>(i);
  const auto [points, values] = training_data().get_batch(all);
  for (int step = 0; step < 800; ++step) {
    adam.zero_grad();
    torch::mse_loss(net->forward(points), values).backward();
    adam.step();
  }
  for (torch::Tensor& parameter : net->parameters())
    parameter.requires_grad_(false);
  return net;
}

int main() {
  torch::manual_seed(0);
  accelerate::Accelerator accelerator;
  Net net;
  torch::optim::Adam adam(net->parameters(), 1e-2);
  const accelerate::FullyShardedDataParallelOptions split;
  auto [student, teacher, optimizer, loader] = accelerator.prepare(
      net,
      accelerate::with_options(trained_teacher(), {.fully_sharded = split}),
      adam,
      accelerate::DataLoader(
          training_data(), {.batch_size = 20, .shuffle = true}));
  for (int epoch = 0; epoch < 20; ++epoch) {
    for (auto& [points, values] : loader) {
      optimizer.zero_grad();
      const torch::Tensor loss =
          torch::mse_loss(student(points), teacher(points));
      accelerator.backward(loss);
      optimizer.step();
    }
  }
  print_on_every_rank(
      accelerator,
      "holds " + std::to_string(num_elements(student)) +
          " elements of the student, " + std::to_string(num_elements(teacher)) +
          " of the teacher");
  expect(
      sum_over_ranks(accelerator, num_elements(teacher)) ==
          num_elements(student),
      "all ranks together must hold the teacher once");
  report(accelerator, net);
  accelerator.end_training();
}
