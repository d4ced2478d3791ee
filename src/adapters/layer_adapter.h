#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <accelerate/adapters.h>

#include "adapters/layer_kind.h"

namespace accelerate::detail {

/// A matrix of an adapter in the module tree: "lora_A.default".
class AdapterWeight final : public torch::nn::Module {
 public:
  explicit AdapterWeight(const at::Tensor& values)
      : Module("AdapterWeight"), weight(register_parameter("weight", values)) {}

  at::Tensor weight;
};

/// One adapter of one layer. The tensors are the parameters in the module tree.
struct LayerAdapter {
  /// [rank, inputs] and [outputs, rank]; of an embedding [rank, number] and
  /// [dimension, rank]; of a convolution [rank, inputs, ...] and
  /// [outputs, rank / groups, 1, ...].
  at::Tensor a, b;
  /// The norms that DoRA trains; undefined without it.
  at::Tensor magnitude = {};
  double scaling = 1;
  double dropout = 0;
  /// A module in the tree, which knows whether the layer trains.
  std::shared_ptr<torch::nn::Module> mode = nullptr;

  [[nodiscard]] bool drops() const {
    return dropout > 0 && mode != nullptr && mode->is_training();
  }
};

/// Rank and scale of the adapter of a layer with this name.
std::int64_t rank_for(const AdapterOptions& options, const std::string& layer);
double scaling_for(const AdapterOptions& options, const std::string& layer);

/// Makes an adapter with its first values, drawn from the default generator in
/// PEFT's order.
LayerAdapter make_adapter(
    const LayerFacts& layer,
    const AdapterOptions& options,
    const std::string& name);

/// The product of the adapter's matrices in the layout of the weight, without
/// its scale.
at::Tensor adapter_product(
    const LayerAdapter& adapter,
    LayerKind kind,
    at::IntArrayRef weight_sizes);

/// The norms of a weight that DoRA divides by: one per output of a layer.
at::Tensor weight_norms(const at::Tensor& weight, LayerKind kind);

/// DoRA's norms in a shape that broadcasts with the weight.
at::Tensor as_weight_factor(
    const at::Tensor& factor,
    LayerKind kind,
    at::IntArrayRef weight_sizes);

}  // namespace accelerate::detail
