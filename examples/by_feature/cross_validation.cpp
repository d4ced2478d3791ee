// Cross-validation: each sample is judged by a model that was trained without
// it. Five folds, a new model for each, the same on any number of ranks.
#include "task.h"

constexpr std::int64_t kNumFolds = 5;

// The samples of one fold, or all others.
auto part_of_data(std::int64_t fold, bool is_of_fold) {
  std::vector<std::int64_t> indices;
  for (std::int64_t i = 0; i < 500; ++i)
    if ((i % kNumFolds == fold) == is_of_fold) indices.push_back(i);
  const auto [points, values] = training_data().get_batch(indices);
  return accelerate::TensorDataset(points, values);
}

int main() {
  accelerate::Accelerator accelerator;
  const auto logger = accelerator.world().logger(
      "cross_validation", accelerate::LogLevel::info);
  accelerate::Mean error(accelerator);
  accelerate::Sum judged(accelerator);
  Net last = nullptr;
  for (const std::int64_t fold : accelerator.progress(
           kNumFolds, {.description = "folds", .unit = "fold"})) {
    torch::manual_seed(fold);
    Net net;
    torch::optim::Adam adam(net->parameters(), 1e-2);
    auto [model, optimizer, loader, evaluation] = accelerator.prepare(
        net,
        adam,
        accelerate::DataLoader(
            part_of_data(fold, false), {.batch_size = 20, .shuffle = true}),
        accelerate::DataLoader(part_of_data(fold, true), {.batch_size = 32}));
    for (int epoch = 0; epoch < 30; ++epoch) {
      for (auto& [points, values] : loader) {
        optimizer.zero_grad();
        accelerator.backward(torch::mse_loss(model(points), values));
        optimizer.step();
      }
    }
    const torch::NoGradGuard no_grad;
    accelerate::Mean error_of_fold(accelerator);
    for (auto& [points, values] : evaluation) {
      const torch::Tensor errors = (model(points) - values).square();
      error_of_fold.update(errors);
      error.update(errors);
      judged.update(torch::ones({points.size(0)}));
    }
    logger.info("fold {}: error {}", fold, error_of_fold.compute());
    last = net;
    accelerator.free_memory();
  }
  const bool is_good = error.compute() < 0.05;
  accelerator.print(
      std::to_string(static_cast<int>(judged.compute())) +
      " samples judged, error " + (is_good ? "below" : "above") + " 0.05");
  expect(judged.compute() == 500, "every sample must be judged once");
  report(accelerator, last);
  accelerator.end_training();
}
