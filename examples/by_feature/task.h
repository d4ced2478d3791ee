// The task of the examples in this directory: a small net on a smooth function.
#pragma once

#include <accelerate/accelerate.h>
#include <torch/torch.h>

#include <cstdio>
#include <stdexcept>
#include <string>

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

/// Ends the program with an error unless its feature acted as it must.
inline void expect(bool acted, const std::string& what_must_be) {
  if (!acted) throw std::runtime_error(what_must_be);
}

/// The sum of a number over all ranks.
inline std::int64_t sum_over_ranks(
    const accelerate::Accelerator& accelerator,
    std::int64_t number) {
  return accelerator.reduce(torch::tensor(number)).item<std::int64_t>();
}

/// Prints a line on every rank.
inline void print_on_every_rank(
    const accelerate::Accelerator& accelerator,
    const std::string& text) {
  std::printf("rank %d: %s\n", accelerator.process_index(), text.c_str());
  std::fflush(stdout);
}

/// Number of steps that Adam itself has taken.
inline std::int64_t steps_taken(const torch::optim::Adam& adam) {
  const auto& state = *adam.state().begin()->second;
  return static_cast<const torch::optim::AdamParamState&>(state).step();
}

/// Number of elements of a model that this rank holds.
template <class M>
std::int64_t num_elements(const accelerate::Model<M>& model) {
  std::int64_t sum = 0;
  for (const auto& shard : model.state_dict_shards())
    sum += shard.tensor.numel();
  return sum;
}

/// Whether all ranks have the same weights, bit for bit.
inline bool has_equal_weights(
    const accelerate::Accelerator& accelerator,
    const Net& net) {
  bool are_equal = true;
  for (const torch::Tensor& parameter : net->parameters()) {
    const auto all = accelerator.gather(parameter.detach().unsqueeze(0));
    are_equal &= all.eq(all[0]).all().item<bool>();
  }
  return are_equal;
}

/// Prints the mean squared error over all points, on rank 0.
template <class AnyNet>
void report(const accelerate::Accelerator& accelerator, AnyNet& net) {
  const torch::NoGradGuard no_grad;
  std::vector<std::int64_t> all(500);
  for (std::size_t i = 0; i < all.size(); ++i)
    all[i] = static_cast<std::int64_t>(i);
  const auto [points, values] = training_data().get_batch(all);
  net->to(torch::kCPU, torch::kFloat);
  const torch::Tensor predicted = net->forward(points);
  const double loss = torch::mse_loss(predicted, values).item<double>();
  char line[32];
  std::snprintf(line, sizeof line, "loss %.9f", loss);
  accelerator.print(line);
}
