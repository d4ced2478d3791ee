#include "planning/layout/layer_seconds.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "planning/layout/model_costs.h"

namespace accelerate::detail {

namespace {

double product_seconds(const LayoutCase& of, double flops) {
  return flops / product_speed(of.options);
}

double expert_seconds(const LayoutCase& of, double flops) {
  const double speed = of.cluster().expert_flops;
  return speed > 0 ? flops / speed : product_seconds(of, flops);
}

// Seconds of elementwise work on logits.
double loss_seconds(const LayoutCase& of, double elements) {
  const double speed = of.cluster().measured.loss_bytes_per_second;
  if (speed == 0) return touch_seconds(of, elements);
  return elements * of.element_bytes() / speed;
}

double overhead_seconds(const LayoutCase& of, double operators) {
  return operators * of.cluster().seconds_per_operator;
}

// Factors of the largest measured degree that does not exceed `tensor`.
std::span<const LayerSlowdown> slowdowns_of(
    const std::vector<LayerSlowdown>& known,
    int tensor) {
  const auto end = std::upper_bound(
      known.begin(), known.end(), tensor, [](int degree, const auto& each) {
        return degree < each.tensor;
      });
  if (end == known.begin()) return {};
  const auto begin = std::lower_bound(
      known.begin(), end, (end - 1)->tensor, [](const auto& each, int degree) {
        return each.tensor < degree;
      });
  return {begin, end};
}

// Interpolates a value at `tokens`, linearly in the logarithm of the count.
double value_at(
    std::span<const LayerSlowdown> known,
    double tokens,
    double LayerSlowdown::*value) {
  const auto above = std::ranges::find_if(
      known, [&](const LayerSlowdown& each) { return each.tokens >= tokens; });
  if (above == known.end()) return known.back().*value;
  if (above == known.begin()) return (*above).*value;
  const LayerSlowdown& below = *(above - 1);
  const double place =
      std::log(tokens / below.tokens) / std::log(above->tokens / below.tokens);
  return below.*value + place * ((*above).*value - below.*value);
}

double slowdown_at(std::span<const LayerSlowdown> known, double tokens) {
  return known.empty() ? 1 : value_at(known, tokens, &LayerSlowdown::factor);
}

}  // namespace

double touch_seconds(const LayoutCase& of, double elements) {
  return elements * of.element_bytes() / of.cluster().memory_bytes_per_second;
}

LayerSeconds seconds_of(const LayoutCase& of, const LayerCosts& layer) {
  const double tokens = of.tokens(), tensor = of.layout.tensor;
  const double positions = static_cast<double>(of.options.sequence_length);
  const double touched = layer.touched *
      (1 - layer.kept_divided + layer.kept_divided / tensor) * tokens;
  const auto slowdowns =
      slowdowns_of(of.cluster().measured.layer_slowdowns, of.layout.tensor);
  const bool are_split = !slowdowns.empty() && slowdowns.front().tensor > 1;
  const double slowdown =
      slowdown_at(slowdowns, are_split ? tokens : touched / layer.touched);
  LayerSeconds seconds;
  seconds.projections =
      product_seconds(of, layer.attention_flops * tokens / tensor) +
      touch_seconds(of, touched / 2) +
      overhead_seconds(of, kLayerOperators / 2);
  const double attention =
      layer.attention_flops_per_position * positions * tokens / tensor;
  seconds.attention = of.cluster().attention_flops > 0
      ? attention / of.cluster().attention_flops
      : product_seconds(of, attention);
  seconds.mlp = product_seconds(of, layer.mlp_flops * tokens / tensor) +
      touch_seconds(of, touched / 2) +
      overhead_seconds(of, kLayerOperators / 2);
  if (layer.has_experts) {
    const double held =
        static_cast<double>(of.model.shape.num_experts) / of.layout.expert;
    seconds.experts = expert_seconds(
                          of,
                          layer.expert_flops * tokens / tensor *
                              of.options.expert_imbalance) +
        tokens * of.cluster().measured.seconds_per_routed_token +
        overhead_seconds(of, kExpertOperators * held);
  }
  for (double* part :
       {&seconds.projections,
        &seconds.attention,
        &seconds.mlp,
        &seconds.experts})
    *part *= slowdown;
  return seconds;
}

double forward_seconds(const LayoutCase& of, const LayerCosts& layer) {
  const LayerSeconds seconds = seconds_of(of, layer);
  return seconds.projections + seconds.attention + seconds.mlp +
      seconds.experts;
}

double head_seconds(const LayoutCase& of) {
  const double vocabulary =
      static_cast<double>(of.model.shape.vocabulary) / of.layout.tensor;
  return product_seconds(
             of, of.model.head_flops * of.tokens() / of.layout.tensor) +
      loss_seconds(of, kLogitTouches * of.tokens() * vocabulary) +
      overhead_seconds(of, 4);
}

std::optional<double> reduction_seconds(const LayoutCase& of) {
  const auto known =
      slowdowns_of(of.cluster().measured.layer_slowdowns, of.layout.tensor);
  if (known.empty() || known.front().tensor != of.layout.tensor ||
      of.cluster().measured.shared_processors == 0)
    return std::nullopt;
  const double seconds =
      value_at(known, of.tokens(), &LayerSlowdown::reduce_seconds);
  return seconds > 0 ? std::optional(seconds) : std::nullopt;
}

}  // namespace accelerate::detail
