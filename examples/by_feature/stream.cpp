// The plain loop over a stream that only rank 0 can read: it sends the others
// their slices.
#include "task.h"

class Measurements {
 public:
  std::optional<std::pair<torch::Tensor, torch::Tensor>> next() {
    if (next_ == 500) return std::nullopt;
    const std::int64_t index[] = {next_++};
    ++*num_read_;
    const auto [points, values] = data_.get_batch(index);
    return std::pair(points[0], values[0]);
  }
  void reset() { next_ = 0; }
  [[nodiscard]] std::shared_ptr<const std::int64_t> num_read() const {
    return num_read_;
  }

 private:
  decltype(training_data()) data_ = training_data();
  std::int64_t next_ = 0;
  std::shared_ptr<std::int64_t> num_read_ = std::make_shared<std::int64_t>(0);
};

int main() {
  torch::manual_seed(0);
  accelerate::Accelerator accelerator;
  Net net;
  torch::optim::Adam adam(net->parameters(), 1e-2);
  const Measurements measurements;
  const auto num_read = measurements.num_read();
  auto [model, optimizer, loader] = accelerator.prepare(
      net, adam, accelerate::DataLoader(measurements, {.batch_size = 20}));
  std::int64_t num_received = 0;
  for (int epoch = 0; epoch < 20; ++epoch) {
    for (auto& [points, values] : loader) {
      optimizer.zero_grad();
      const torch::Tensor loss = torch::mse_loss(model(points), values);
      accelerator.backward(loss);
      optimizer.step();
      num_received += points.size(0);
    }
  }
  print_on_every_rank(
      accelerator,
      "read " + std::to_string(*num_read) + " samples, trained on " +
          std::to_string(num_received));
  expect(
      *num_read == (accelerator.is_main_process() ? 20 * 500 : 0),
      "rank 0 must read everything, and the others nothing");
  expect(
      sum_over_ranks(accelerator, num_received) == 20 * 500,
      "each sample must be trained on by one rank");
  report(accelerator, net);
  accelerator.end_training();
}
