#pragma once

#include <string_view>

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

namespace accelerate::detail {

/// How the class of a module makes it a linear layer.
enum class LinearClass {
  none,
  /// Multiplies by the transpose of [outputs, inputs]: torch::nn::Linear and
  /// classes derived from it, and `Linear` of an exported program, whose
  /// modules have the names of Python's classes.
  linear,
  /// Multiplies by [inputs, outputs]: `Conv1D`, which Hugging Face's GPT-2 has.
  transposed,
};

/// The only place that decides which modules are linear layers: for float8,
/// quantisation, adapters and plans of tensor parallelism.
inline LinearClass linear_class_of(const torch::nn::Module& module) {
  if (dynamic_cast<const torch::nn::LinearImpl*>(&module) != nullptr)
    return LinearClass::linear;
  const std::string_view name = module.name();
  if (name == "Linear") return LinearClass::linear;
  return name == "Conv1D" ? LinearClass::transposed : LinearClass::none;
}

/// The weight [outputs, inputs] of a layer of LinearClass::linear. Undefined
/// for other modules.
inline at::Tensor linear_weight_of(const torch::nn::Module& module) {
  if (const auto* const linear =
          dynamic_cast<const torch::nn::LinearImpl*>(&module))
    return linear->weight;
  if (linear_class_of(module) != LinearClass::linear) return {};
  const auto parameters = module.named_parameters(/*recurse=*/false);
  const at::Tensor* const weight = parameters.find("weight");
  return weight != nullptr && weight->dim() == 2 ? *weight : at::Tensor();
}

}  // namespace accelerate::detail
