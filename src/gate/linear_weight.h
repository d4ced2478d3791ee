#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

namespace accelerate::detail {

/// The weight [out, in] of a linear layer: of LibTorch's class, or of an
/// exported program, whose modules have the names of Python's classes.
/// Undefined for other modules.
inline at::Tensor linear_weight_of(const torch::nn::Module& module) {
  if (const auto* const linear =
          dynamic_cast<const torch::nn::LinearImpl*>(&module))
    return linear->weight;
  if (module.name() != "Linear") return {};
  const auto parameters = module.named_parameters(/*recurse=*/false);
  const at::Tensor* const weight = parameters.find("weight");
  return weight != nullptr && weight->dim() == 2 ? *weight : at::Tensor();
}

}  // namespace accelerate::detail
