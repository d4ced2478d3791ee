#include "precision/fp8/float8_layers.h"

#include <cstddef>
#include <cstdint>

#include <torch/nn/modules/linear.h>

#include "base/text/text.h"

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
  const auto& options = layer.module->options;
  if (options.in_features() % kMultipleOf != 0) {
    return format(
        "in_features {} is not a multiple of {}",
        options.in_features(),
        kMultipleOf);
  }
  if (options.out_features() % kMultipleOf != 0) {
    return format(
        "out_features {} is not a multiple of {}",
        options.out_features(),
        kMultipleOf);
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
  for (const auto& item :
       model.named_modules(/*name_prefix=*/"", /*include_self=*/false)) {
    if (auto* const linear =
            dynamic_cast<torch::nn::LinearImpl*>(item.value().get()))
      layers.push_back({{item.key()}, linear});
  }
  // LibTorch returns a const module's children as pointers to non-const.
  if (const auto* const linear =
          dynamic_cast<const torch::nn::LinearImpl*>(&model))
    layers.push_back({{""}, const_cast<torch::nn::LinearImpl*>(linear)});
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
