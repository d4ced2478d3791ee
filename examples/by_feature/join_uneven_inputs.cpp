// The plain loop without filling up the last round: a rank that has run out of
// batches shadows the others until all are done.
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
  int num_batches = 0;
  for (int epoch = 0; epoch < 20; ++epoch) {
    const auto train =
        [&, &model = model, &optimizer = optimizer, &loader = loader] {
          for (auto& [points, values] : loader) {
            optimizer.zero_grad();
            const torch::Tensor loss = torch::mse_loss(model(points), values);
            accelerator.backward(loss);
            optimizer.step();
            ++num_batches;
          }
        };
    accelerator.join_uneven_inputs(train, {.even_batches = false});
  }
  print_on_every_rank(
      accelerator, "had " + std::to_string(num_batches) + " batches");
  expect(
      sum_over_ranks(accelerator, num_batches) == 20 * 25,
      "each batch must be read by one rank");
  expect(
      has_equal_weights(accelerator, net),
      "all ranks must have the same weights");
  accelerator.print("all ranks have the same weights");
  report(accelerator, net);
  accelerator.end_training();
}
