#pragma once

#include <torch/nn/module.h>

namespace accelerate::detail {

template <class... Types>
bool is_one_of_types(const torch::nn::Module& module) {
  return ((module.as<Types>() != nullptr) || ...);
}

}  // namespace accelerate::detail
