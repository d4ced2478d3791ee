#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace accelerate::detail {

/// What a layer computes with its weight.
enum class LayerKind {
  /// A product with the transpose of [outputs, inputs].
  linear,
  /// A product with [inputs, outputs]: Conv1D of Hugging Face.
  transposed_linear,
  /// Rows of [number, dimension].
  embedding,
  /// A convolution with [outputs, inputs / groups, ...].
  convolution,
};

/// A layer that can have adapters.
struct LayerFacts {
  LayerKind kind = LayerKind::linear;
  at::Tensor weight;
  /// A convolution's groups, if they are known; otherwise 1.
  std::int64_t groups = 1;
};

/// Returns nothing for a module that cannot have adapters. `fan_in_fan_out` is
/// about matrices of unknown classes.
std::optional<LayerFacts> layer_facts(
    const torch::nn::Module& module,
    bool fan_in_fan_out);

/// The class's name without namespaces and "Impl".
std::string short_class_name(const torch::nn::Module& module);

/// The parameter of the module itself with this name; undefined without one.
at::Tensor own_parameter(const torch::nn::Module& module, const char* name);

}  // namespace accelerate::detail
