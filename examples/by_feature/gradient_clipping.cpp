// The plain loop with gradients clipped to a norm of 1.
#include "task.h"

double norm_of_gradients(const Net& net) {
  double sum = 0;
  for (const torch::Tensor& parameter : net->parameters())
    sum += parameter.grad().square().sum().item<double>();
  return std::sqrt(sum);
}

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
  int num_clipped = 0;
  double largest_norm = 0;
  for (int epoch = 0; epoch < 20; ++epoch) {
    for (auto& [points, values] : loader) {
      optimizer.zero_grad();
      const torch::Tensor loss = torch::mse_loss(model(points), values);
      accelerator.backward(loss);
      if (accelerator.sync_gradients()) {
        // The norm before clipping.
        const auto norm =
            accelerator.clip_grad_norm_(model, 1.0).item<double>();
        if (norm > 1.0) ++num_clipped;
        largest_norm = std::max(largest_norm, norm_of_gradients(net));
      }
      optimizer.step();
    }
  }
  accelerator.print(
      "clipped " + std::to_string(num_clipped) +
      " gradients; the largest norm that remained is " +
      std::to_string(largest_norm));
  expect(
      num_clipped > 0 && largest_norm < 1.0001,
      "some gradients must be longer than 1, and none may remain so");
  report(accelerator, net);
  accelerator.end_training();
}
