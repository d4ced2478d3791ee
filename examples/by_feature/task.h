// The task of the examples in this directory: a small net on a smooth function.
#pragma once

#include <accelerate/accelerate.h>
#include <torch/torch.h>

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    return out(torch::tanh(hidden(x)));
  }
  torch::nn::Linear hidden =
      register_module("hidden", torch::nn::Linear(2, 32));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(32, 1));
};
TORCH_MODULE(Net);

/// 500 points of the plane, and sin(x) + cos(2 y) at each.
inline auto training_data() {
  const torch::Tensor points =
      torch::rand({500, 2}, at::detail::createCPUGenerator(1)) * 4 - 2;
  const torch::Tensor values = torch::sin(points.narrow(1, 0, 1)) +
      torch::cos(2 * points.narrow(1, 1, 1));
  return accelerate::TensorDataset(points, values);
}

/// Prints the mean squared error over all points, on rank 0.
inline void report(const accelerate::Accelerator& accelerator, Net& net) {
  const torch::NoGradGuard no_grad;
  std::vector<std::int64_t> all(500);
  for (std::size_t i = 0; i < all.size(); ++i)
    all[i] = static_cast<std::int64_t>(i);
  const auto [points, values] = training_data().get_batch(all);
  net->to(torch::kCPU, torch::kFloat);
  const double loss =
      torch::mse_loss(net->forward(points), values).item<double>();
  accelerator.print("loss " + std::to_string(loss));
}
