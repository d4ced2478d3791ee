// The plain loop with a loader whose threads read ahead; it is stopped in the
// middle of a pass, and another loader continues there.
#include "task.h"

// Reads one measurement at a time, with its own noise.
struct NoisyMeasurements {
  decltype(training_data()) data = training_data();

  [[nodiscard]] std::int64_t size() const { return data.size(); }
  [[nodiscard]] std::pair<torch::Tensor, torch::Tensor> get(
      std::int64_t index,
      at::Generator& generator) const {
    const std::int64_t one[] = {index};
    const auto [points, values] = data.get_batch(one);
    return {
        points[0] + 1e-3 * torch::randn(points[0].sizes(), generator),
        values[0]};
  }
};

int main() {
  torch::manual_seed(0);
  accelerate::Accelerator accelerator;
  Net net;
  torch::optim::Adam adam(net->parameters(), 1e-2);
  const accelerate::DataLoaderOptions options{
      .batch_size = 20,
      .shuffle = true,
      .num_workers = 2,
      .timeout = std::chrono::seconds(60)};
  auto [model, optimizer, loader, resumed] = accelerator.prepare(
      net,
      adam,
      accelerate::DataLoader(NoisyMeasurements(), options),
      accelerate::DataLoader(NoisyMeasurements(), options));
  const auto step = [&, &model = model, &optimizer = optimizer](
                        const torch::Tensor& points,
                        const torch::Tensor& values) {
    optimizer.zero_grad();
    accelerator.backward(torch::mse_loss(model(points), values));
    optimizer.step();
  };
  std::int64_t num_steps = 0;
  for (int epoch = 0; epoch < 10; ++epoch) {
    for (auto& [points, values] : loader) {
      step(points, values);
      ++num_steps;
      if (epoch == 9 && num_steps % loader.size() == 3) {
        resumed.load_state_dict(loader.state_dict());
        break;
      }
    }
  }
  for (int epoch = 9; epoch < 20; ++epoch) {
    int num_batches = 0;
    for (auto& [points, values] : resumed) {
      step(points, values);
      ++num_batches;
    }
    if (epoch == 9) {
      expect(
          num_batches == resumed.size() - 3,
          "the other loader must continue after the third batch");
      accelerator.print(
          "continued with the last " + std::to_string(num_batches) + " of " +
          std::to_string(resumed.size()) + " batches");
    }
  }
  accelerator.print(resumed.prefetch_report().text());
  report(accelerator, net);
  accelerator.end_training();
}
