#pragma once

#include <map>
#include <string>

#include <torch/types.h>

#include <accelerate/weights.h>

namespace accelerate::testing {

/// A model's weights by name.
using Weights = std::map<std::string, torch::Tensor>;

/// Copies the weights of a list, so that later steps do not change them.
inline Weights named(const WeightList& list) {
  Weights weights;
  for (const auto& [name, tensor] : list)
    weights[name] = tensor.detach().clone();
  return weights;
}

}  // namespace accelerate::testing
