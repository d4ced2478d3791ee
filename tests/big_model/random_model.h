#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/nn.h>

#include <accelerate/device_map.h>

namespace accelerate::testing {

/// A block of a random model, by kind: linear layers with and without bias,
/// normalisations with buffers, residuals, dropout and layers that share a
/// weight.
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
    // Both names refer to one layer.
    if (kind == 3) b = register_module("b", a);
    if (kind == 4) b = register_module("b", nn::Linear(kWidth, kWidth));
    if (kind == 5) dropout = register_module("dropout", nn::Dropout(0.3));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    switch (kind_) {
      case 1:
        return norm(x);
      case 2:
        return b(torch::relu(batch(a(x)))) * scale;
      case 3:
        return b(torch::tanh(a(x)));
      case 4:
        return x + b(torch::relu(a(x))).masked_fill(mask.to(x.device()), 0);
      case 5:
        return dropout(torch::relu(a(x)));
      default:
        return torch::relu(a(x));
    }
  }

  static constexpr int kNumKinds = 6;
  static constexpr int kWidth = 6;
  torch::nn::Linear a{nullptr}, b{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::BatchNorm1d batch{nullptr};
  torch::nn::Dropout dropout{nullptr};
  torch::Tensor scale;
  /// An ordinary tensor, not registered as a buffer.
  torch::Tensor mask = torch::arange(kWidth) == 2;

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

/// A tree of modules: blocks, and groups of blocks and groups. A group adds its
/// input and a parameter of its own to the output of its children.
struct RandomTreeImpl : torch::nn::Module {
  /// The kind of a block, or the children of a group.
  struct Shape {
    int kind = 0;
    std::vector<Shape> children = {};
  };

  explicit RandomTreeImpl(const Shape& shape) {
    if (shape.children.empty()) {
      block = register_module("block", RandomBlock(shape.kind));
      return;
    }
    offset =
        register_parameter("offset", torch::randn({RandomBlockImpl::kWidth}));
    for (const Shape& child : shape.children) {
      children_in_order.push_back(register_module(
          "child" + std::to_string(children_in_order.size()),
          std::make_shared<RandomTreeImpl>(child)));
    }
  }
  torch::Tensor forward(const torch::Tensor& x) {
    if (block) return block(x);
    torch::Tensor y = x;
    for (const auto& child : children_in_order) y = child->forward(y);
    return x + y + offset;
  }

  RandomBlock block{nullptr};
  torch::Tensor offset;
  std::vector<std::shared_ptr<RandomTreeImpl>> children_in_order;
};
TORCH_MODULE(RandomTree);

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
