#include "precision/fp8/float8_rules.h"

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate {

Float8LinearConfig Float8LinearConfig::from_recipe_name(std::string_view name) {
  using enum Float8LinearRecipeName;
  if (name == "tensorwise") return {.recipe = tensorwise};
  if (name == "rowwise") return {.recipe = rowwise};
  if (name == "rowwise_with_gw_hp") return {.recipe = rowwise_with_gw_hp};
  throw ConfigError(detail::format(
      "[precision] the float8 recipe must be tensorwise, rowwise or "
      "rowwise_with_gw_hp, but is \"{}\"",
      name));
}

namespace detail {

namespace {

constexpr at::ScalarType kE4m3 = at::kFloat8_e4m3fn;
constexpr at::ScalarType kE5m2 = at::kFloat8_e5m2;

}  // namespace

Float8Rules float8_rules_of(const AORecipeKwargs& recipe) {
  const Float8LinearConfig& config = *recipe.config;
  const bool is_tensorwise =
      config.recipe == Float8LinearRecipeName::tensorwise;
  const bool power_of_2 =
      config.round_scales_to_power_of_2.value_or(!is_tensorwise);
  const auto granularity = is_tensorwise ? Float8Granularity::tensorwise
                                         : Float8Granularity::axiswise;
  const DynamicCast input{
      config.input_dtype == Float8Type::e4m3 ? kE4m3 : kE5m2,
      granularity,
      power_of_2};
  const DynamicCast weight{kE4m3, granularity, power_of_2};
  const DynamicCast grad_output{
      is_tensorwise ? kE5m2 : kE4m3, granularity, power_of_2};
  Float8Rules rules{
      .input = input,
      .weight = weight,
      .grad_output = grad_output,
      .weight_for_grad_input = weight,
      .grad_output_for_grad_weight = grad_output,
      .input_for_grad_weight = input,
      .pads = config.pad_inner_dim,
      .rounds_gradients_randomly = config.stochastic_rounding};
  if (config.recipe == Float8LinearRecipeName::rowwise_with_gw_hp) {
    rules.weight_for_grad_input->granularity = Float8Granularity::tensorwise;
    rules.grad_output_for_grad_weight.reset();
    rules.input_for_grad_weight.reset();
  }
  return rules;
}

Float8Rules float8_rules_of(const TERecipeKwargs& recipe) {
  const bool has_blocks = *recipe.use_mxfp8_block_scaling;
  const auto granularity =
      has_blocks ? Float8Granularity::blocks : Float8Granularity::tensorwise;
  const DynamicCast forward{
      *recipe.fp8_format == "E5M2" ? kE5m2 : kE4m3, granularity};
  const DynamicCast backward{
      *recipe.fp8_format == "E4M3" ? kE4m3 : kE5m2, granularity};
  Float8Rules rules{
      .input = forward,
      .weight = forward,
      .grad_output = backward,
      .weight_for_grad_input = forward,
      .grad_output_for_grad_weight = backward,
      .input_for_grad_weight = forward,
      .rounds_gradients_randomly = recipe.stochastic_rounding};
  if (!has_blocks) {
    rules.delayed = DelayedScaleOptions{
        .history_len = *recipe.amax_history_len,
        .uses_largest = *recipe.amax_compute_algo == "max",
        .margin = *recipe.margin,
        .interval = *recipe.interval};
  }
  const OverrideLinearPrecision& high = *recipe.override_linear_precision;
  if (high.fprop) {
    rules.input.reset();
    rules.weight.reset();
  }
  if (high.dgrad) {
    rules.grad_output.reset();
    rules.weight_for_grad_input.reset();
  }
  if (high.wgrad) {
    rules.grad_output_for_grad_weight.reset();
    rules.input_for_grad_weight.reset();
  }
  return rules;
}

// Both levels of MS-AMP have these rules.
Float8Rules float8_rules_of(const MSAMPRecipeKwargs& /*recipe*/) {
  const DynamicCast forward{kE4m3, Float8Granularity::tensorwise, true};
  const DynamicCast backward{kE5m2, Float8Granularity::tensorwise, true};
  return {
      .input = forward,
      .weight = forward,
      .grad_output = backward,
      .weight_for_grad_input = forward,
      .grad_output_for_grad_weight = backward,
      .input_for_grad_weight = forward};
}

}  // namespace detail

}  // namespace accelerate
