// Metrics that gather themselves: each rank gives them its own batches, and
// compute() returns what one process would.
#include "task.h"

// The mean squared error and the share of correct signs on a single process.
std::pair<double, double> by_one_process(Net& net) {
  const torch::NoGradGuard no_grad;
  std::vector<std::int64_t> all(500);
  for (std::size_t i = 0; i < all.size(); ++i)
    all[i] = static_cast<std::int64_t>(i);
  const auto [points, values] = training_data().get_batch(all);
  const torch::Tensor predicted = net->forward(points);
  return {
      (predicted - values).square().mean().item<double>(),
      ((predicted > 0) == (values > 0))
          .to(torch::kDouble)
          .mean()
          .item<double>()};
}

int main() {
  torch::manual_seed(0);
  accelerate::Accelerator accelerator;
  Net net;
  torch::optim::Adam adam(net->parameters(), 1e-2);
  auto [model, optimizer, loader, evaluation] = accelerator.prepare(
      net,
      adam,
      accelerate::DataLoader(
          training_data(), {.batch_size = 20, .shuffle = true}),
      accelerate::DataLoader(training_data(), {.batch_size = 64}));
  accelerate::Mean training_loss(accelerator), error(accelerator);
  accelerate::Sum seen(accelerator);
  accelerate::Accuracy signs(accelerator, {.classes = {.threshold = 0}});
  accelerator.register_for_checkpointing(training_loss, error, seen, signs);
  for (int epoch = 0; epoch < 20; ++epoch) {
    training_loss.reset();
    for (auto& [points, values] : loader) {
      optimizer.zero_grad();
      const torch::Tensor loss = torch::mse_loss(model(points), values);
      accelerator.backward(loss);
      optimizer.step();
      training_loss.update(loss);
    }
  }
  const torch::NoGradGuard no_grad;
  for (auto& [points, values] : evaluation) {
    const torch::Tensor predicted = model(points);
    error.update((predicted - values).square());
    signs.update(predicted, (values > 0).to(torch::kLong));
    seen.update(torch::ones({points.size(0)}));
  }
  const auto [one_error, one_signs] = by_one_process(net);
  expect(seen.compute() == 500, "each sample must count once");
  expect(
      std::abs(error.compute() - one_error) < 1e-5 &&
          std::abs(signs.compute() - one_signs) < 1e-9,
      "metrics must be those of one process");
  char line[200];
  std::snprintf(
      line,
      sizeof(line),
      "%.0f samples: error %.6f, signs %.4f; by one process: error %.6f, "
      "signs %.4f",
      seen.compute(),
      error.compute(),
      signs.compute(),
      one_error,
      one_signs);
  accelerator.print(line);
  std::snprintf(
      line, sizeof(line), "training loss %.4f", training_loss.compute());
  accelerator.print(line);
  report(accelerator, net);
  accelerator.end_training();
}
