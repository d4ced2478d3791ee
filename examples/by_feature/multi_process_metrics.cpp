// The plain loop with a metric over all ranks after each epoch: every sample
// counts once, even those repeated to fill up the last batch.
#include "task.h"

// The metric on a single process.
std::int64_t count_close(Net& net) {
  const torch::NoGradGuard no_grad;
  std::int64_t close = 0;
  const auto data = training_data();
  for (std::int64_t i = 0; i < data.size(); ++i) {
    const std::int64_t one[] = {i};
    const auto [point, value] = data.get_batch(one);
    close += (net->forward(point) - value).abs().item<double>() < 0.2 ? 1 : 0;
  }
  return close;
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
  std::int64_t seen = 0, close = 0;
  for (int epoch = 0; epoch < 20; ++epoch) {
    for (auto& [points, values] : loader) {
      optimizer.zero_grad();
      const torch::Tensor loss = torch::mse_loss(model(points), values);
      accelerator.backward(loss);
      optimizer.step();
    }
    const torch::NoGradGuard no_grad;
    seen = close = 0;
    for (auto& [points, values] : evaluation) {
      const auto [predicted, wanted] =
          accelerator.gather_for_metrics(std::pair(model(points), values));
      seen += wanted.size(0);
      close += ((predicted - wanted).abs() < 0.2)
                   .sum()
                   .template item<std::int64_t>();
    }
    accelerator.print(
        "epoch " + std::to_string(epoch) + ": " + std::to_string(close) +
        " of " + std::to_string(seen) + " within 0.2");
  }
  expect(
      seen == 500 && close == count_close(net),
      "every sample must count once, as on one process");
  accelerator.print(
      "by one process: " + std::to_string(count_close(net)) + " of 500");
  report(accelerator, net);
  accelerator.end_training();
}
