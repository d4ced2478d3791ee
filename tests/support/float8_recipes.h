#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <accelerate/fp8.h>

namespace accelerate::testing {

/// Recipes by the names that the guide uses.
using Float8Recipes = std::vector<std::pair<std::string, FP8Recipe>>;

/// One recipe for each way to choose scales and products. Delayed scaling has a
/// short history, so that a few steps fill it. `filter` chooses the layers of
/// torchao's recipes.
inline Float8Recipes float8_recipes(
    const decltype(AORecipeKwargs::module_filter_func)& filter = nullptr) {
  const auto named = [&](const char* name) {
    return AORecipeKwargs{Float8LinearConfig::from_recipe_name(name), filter};
  };
  return {
      {"tensorwise", named("tensorwise")},
      {"rowwise", named("rowwise")},
      {"rowwise_with_gw_hp", named("rowwise_with_gw_hp")},
      {"delayed", TERecipeKwargs{.amax_history_len = 4}},
      {"mxfp8", TERecipeKwargs{.use_mxfp8_block_scaling = true}}};
}

/// The same recipes, with torchao's applied to every linear layer.
inline Float8Recipes float8_recipes_of_all_layers() {
  return float8_recipes(
      [](const std::string&, const torch::nn::Module&) { return true; });
}

}  // namespace accelerate::testing
