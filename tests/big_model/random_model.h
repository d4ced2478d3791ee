#pragma once

#include <string>
#include <vector>

#include <torch/nn.h>

#include <accelerate/device_map.h>

namespace accelerate::testing {

/// A chain of blocks drawn at random: linear layers with and without bias,
/// normalisations with buffers, residual pairs and layers that share a weight.
struct RandomBlockImpl : torch::nn::Module {
  explicit RandomBlockImpl(int kind) : kind_(kind) {
    namespace nn = torch::nn;
    if (kind != 1) {
      a = register_module(
          "a", nn::Linear(nn::LinearOptions(kWidth, kWidth).bias(kind != 3)));
    }
    if (kind == 1)
      norm = register_module(
          "norm", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
    if (kind == 2) {
      batch = register_module("batch", nn::BatchNorm1d(kWidth));
      b = register_module("b", nn::Linear(kWidth, kWidth));
      scale = register_parameter("scale", torch::rand({kWidth}));
    }
    // Both names are one layer.
    if (kind == 3) b = register_module("b", a);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    switch (kind_) {
      case 1:
        return norm(x);
      case 2:
        return b(torch::relu(batch(a(x)))) * scale;
      case 3:
        return b(torch::tanh(a(x)));
      default:
        return torch::relu(a(x));
    }
  }

  static constexpr int kWidth = 6;
  torch::nn::Linear a{nullptr}, b{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::BatchNorm1d batch{nullptr};
  torch::Tensor scale;

 private:
  int kind_;
};
TORCH_MODULE(RandomBlock);

struct RandomModelImpl : torch::nn::Module {
  explicit RandomModelImpl(const std::vector<int>& kinds) {
    for (std::size_t i = 0; i < kinds.size(); ++i)
      blocks.push_back(
          register_module("block" + std::to_string(i), RandomBlock(kinds[i])));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& block : blocks) x = block(x);
    return x;
  }
  std::vector<RandomBlock> blocks;
};
TORCH_MODULE(RandomModel);

/// Copies all parameters and buffers.
template <class Model>
void copy_values(const Model& from, const Model& to) {
  const torch::NoGradGuard no_grad;
  for (const auto& item : from->named_parameters())
    to->named_parameters()[item.key()].copy_(item.value());
  for (const auto& item : from->named_buffers())
    to->named_buffers()[item.key()].copy_(item.value());
}

}  // namespace accelerate::testing
