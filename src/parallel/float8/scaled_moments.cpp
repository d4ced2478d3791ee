#include "parallel/float8/scaled_moments.h"

#include <string>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "params/optimizer_algorithms.h"
#include "precision/fp8/scaled_tensor.h"

namespace accelerate::detail {

namespace {

constexpr at::ScalarType kFirst = at::kFloat8_e4m3fn;
constexpr at::ScalarType kSecond = at::kHalf;

bool has(const ParameterTable& table, const at::Tensor& parameter) {
  return table.find(parameter) != nullptr ||
      table.find_local(parameter) != nullptr;
}

// Calls `visit(state, parameter)` for each state of the table's parameters, as
// its own type.
template <class Visit>
void for_each_state(
    const torch::optim::Optimizer& optimizer,
    const ParameterTable& table,
    Visit&& visit) {
  const auto& states = optimizer.state();
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const auto found = states.find(parameter.unsafeGetTensorImpl());
      if (found == states.end() || !has(table, parameter)) continue;
      torch::optim::OptimizerParamState* const state = found->second.get();
      if (auto* const adam = dynamic_cast<torch::optim::AdamParamState*>(state))
        visit(*adam, parameter);
      if (auto* const adamw =
              dynamic_cast<torch::optim::AdamWParamState*>(state))
        visit(*adamw, parameter);
    }
  }
}

// If a second moment became 0, its parameter's update would be divided by eps,
// so it becomes the smallest value instead.
ScaledTensor cast_second(const at::Tensor& moment) {
  constexpr double kSmallestHalf = 0x1p-24;
  ScaledTensor cast = cast_scaled(moment, kSecond);
  cast.values.masked_fill_((cast.values == 0) & (moment > 0), kSmallestHalf);
  return cast;
}

}  // namespace

void ScaledMoments::require_adam(
    const torch::optim::Optimizer& optimizer,
    const ParameterTable& table) {
  bool steps_on_table = false;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params())
      steps_on_table = steps_on_table || has(table, parameter);
  }
  if (!steps_on_table) return;
  const OptimizerAlgorithm* const algorithm = find_algorithm(optimizer);
  const std::string name =
      algorithm == nullptr ? "one of another class" : algorithm->name;
  if (name == "Adam" || name == "AdamW") return;
  throw ConfigError(format(
      "[precision] MS-AMP's level O2 keeps the moments of Adam and AdamW in 8 "
      "bits, but the optimizer is {}; use one of these two, or opt_level O1",
      name));
}

void ScaledMoments::pack(
    const torch::optim::Optimizer& optimizer,
    const ParameterTable& table) {
  const at::NoGradGuard no_grad;
  for_each_state(optimizer, table, [&](auto& state, const at::Tensor&) {
    if (!state.exp_avg().defined() || state.exp_avg().scalar_type() == kFirst)
      return;
    Scales scales;
    const ScaledTensor first = cast_scaled(state.exp_avg(), kFirst);
    state.exp_avg(first.values);
    scales.exp_avg = first.scale;
    const ScaledTensor second = cast_second(state.exp_avg_sq());
    state.exp_avg_sq(second.values);
    scales.exp_avg_sq = second.scale;
    if (state.max_exp_avg_sq().defined()) {
      const ScaledTensor largest = cast_second(state.max_exp_avg_sq());
      state.max_exp_avg_sq(largest.values);
      scales.max_exp_avg_sq = largest.scale;
    }
    scales_[&state] = std::move(scales);
  });
}

void ScaledMoments::unpack(
    const torch::optim::Optimizer& optimizer,
    const ParameterTable& table) {
  const at::NoGradGuard no_grad;
  for_each_state(
      optimizer, table, [&](auto& state, const at::Tensor& parameter) {
        if (!state.exp_avg().defined() ||
            state.exp_avg().scalar_type() != kFirst)
          return;
        const auto found = scales_.find(&state);
        if (found == scales_.end()) return;
        const Scales& scales = found->second;
        const at::ScalarType dtype = parameter.scalar_type();
        state.exp_avg(
            ScaledTensor{state.exp_avg(), scales.exp_avg}.restore(dtype));
        state.exp_avg_sq(
            ScaledTensor{state.exp_avg_sq(), scales.exp_avg_sq}.restore(dtype));
        if (scales.max_exp_avg_sq.defined()) {
          state.max_exp_avg_sq(
              ScaledTensor{state.max_exp_avg_sq(), scales.max_exp_avg_sq}
                  .restore(dtype));
        }
        scales_.erase(found);
      });
}

}  // namespace accelerate::detail
