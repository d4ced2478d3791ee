// The plain loop over a stream that only rank 0 can read: it sends the others
// their slices.
#include "task.h"

class Measurements {
 public:
  std::optional<std::pair<torch::Tensor, torch::Tensor>> next() {
    if (next_ == 500) return std::nullopt;
    const std::int64_t index[] = {next_++};
    const auto [points, values] = data_.get_batch(index);
    return std::pair(points[0], values[0]);
  }
  void reset() { next_ = 0; }

 private:
  decltype(training_data()) data_ = training_data();
  std::int64_t next_ = 0;
};

int main() {
  torch::manual_seed(0);
  accelerate::Accelerator accelerator;
  Net net;
  torch::optim::Adam adam(net->parameters(), 1e-2);
  auto [model, optimizer, loader] = accelerator.prepare(
      net, adam, accelerate::DataLoader(Measurements(), {.batch_size = 20}));
  for (int epoch = 0; epoch < 20; ++epoch) {
    for (auto& [points, values] : loader) {
      optimizer.zero_grad();
      const torch::Tensor loss = torch::mse_loss(model(points), values);
      accelerator.backward(loss);
      optimizer.step();
    }
  }
  report(accelerator, net);
  accelerator.finish();
}
