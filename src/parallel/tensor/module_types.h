#pragma once

#include <torch/nn/module.h>

namespace accelerate::detail {

/// Whether the module is of one of these types, such as torch::nn::LinearImpl,
/// or of one derived from it.
template <class... Types>
bool is_one_of_types(const torch::nn::Module& module) {
  return ((module.as<Types>() != nullptr) || ...);
}

}  // namespace accelerate::detail
