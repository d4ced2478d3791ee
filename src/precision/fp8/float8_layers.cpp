#include "precision/fp8/float8_layers.h"

#include <cstddef>
#include <cstdint>

#include <torch/nn/modules/linear.h>

#include "base/text/text.h"
#include "gate/linear_weight.h"

namespace accelerate {

namespace detail {

namespace {

constexpr std::int64_t kMultipleOf = 16;

// Why a layer is left unchanged; empty if it becomes float8.
std::string reason_to_spare(
    const LinearLayer& layer,
    const Float8LayerRule& rule,
    bool is_first,
    bool is_last) {
  if (rule.filter) {
    return rule.filter(layer.choice.name, *layer.module)
        ? ""
        : "module_filter_func left it out";
  }
  if (rule.spares_ends && is_first) return "the first linear layer";
  if (rule.spares_ends && is_last) return "the last linear layer";
  // The weight of a divided layer is smaller.
  const auto* const linear =
      dynamic_cast<const torch::nn::LinearImpl*>(layer.module);
  const std::int64_t in_features =
      linear != nullptr ? linear->options.in_features() : layer.weight.size(1);
  const std::int64_t out_features =
      linear != nullptr ? linear->options.out_features() : layer.weight.size(0);
  if (in_features % kMultipleOf != 0) {
    return format(
        "in_features {} is not a multiple of {}", in_features, kMultipleOf);
  }
  if (out_features % kMultipleOf != 0) {
    return format(
        "out_features {} is not a multiple of {}", out_features, kMultipleOf);
  }
  return "";
}

}  // namespace

Float8LayerRule layer_rule_of(const FP8Recipe& recipe) {
  if (const auto* const ao = std::get_if<AORecipeKwargs>(&recipe))
    return {true, ao->module_filter_func};
  return {false, nullptr};
}

std::vector<LinearLayer> choose_linear_layers(
    const torch::nn::Module& model,
    const Float8LayerRule& rule) {
  std::vector<LinearLayer> layers;
  const auto add = [&](const std::string& name,
                       const torch::nn::Module& module) {
    const at::Tensor weight = linear_weight_of(module);
    if (weight.defined()) layers.push_back({{name}, &module, weight});
  };
  for (const auto& item :
       model.named_modules(/*name_prefix=*/"", /*include_self=*/false))
    add(item.key(), *item.value());
  add("", model);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    LinearLayer& layer = layers[i];
    layer.choice.reason =
        reason_to_spare(layer, rule, i == 0, i + 1 == layers.size());
    layer.choice.is_float8 = layer.choice.reason.empty();
  }
  return layers;
}

}  // namespace detail

std::vector<Float8LayerChoice> choose_float8_layers(
    const torch::nn::Module& model,
    const FP8Recipe& recipe) {
  std::vector<Float8LayerChoice> choices;
  for (auto& layer :
       detail::choose_linear_layers(model, detail::layer_rule_of(recipe)))
    choices.push_back(std::move(layer.choice));
  return choices;
}

std::vector<Float8LayerChoice> choose_float8_layers(
    const torch::nn::Module& model) {
  return choose_float8_layers(model, AORecipeKwargs());
}

std::string explain_float8_layers(
    const std::vector<Float8LayerChoice>& layers) {
  std::string text;
  for (const Float8LayerChoice& layer : layers) {
    text += detail::format(
        "{}: {}\n",
        layer.name.empty() ? "(the model itself)" : layer.name,
        layer.is_float8 ? "float8" : "not float8 (" + layer.reason + ")");
  }
  return text;
}

}  // namespace accelerate
