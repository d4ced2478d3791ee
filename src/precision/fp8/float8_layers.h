#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/fp8.h>

namespace torch::nn {
class Module;
}

namespace accelerate::detail {

/// Which linear layers become float8.
struct Float8LayerRule {
  /// The first and the last layer are left unchanged.
  bool spares_ends = true;
  /// If set, replaces all other rules.
  std::function<bool(const std::string&, const torch::nn::Module&)> filter =
      nullptr;
};

Float8LayerRule layer_rule_of(const FP8Recipe& recipe);

struct LinearLayer {
  Float8LayerChoice choice;
  const torch::nn::Module* module = nullptr;
  at::Tensor weight = {};
};

/// All linear layers of a model, in the order of named_modules(); the model
/// itself is last.
std::vector<LinearLayer> choose_linear_layers(
    const torch::nn::Module& model,
    const Float8LayerRule& rule);

}  // namespace accelerate::detail
