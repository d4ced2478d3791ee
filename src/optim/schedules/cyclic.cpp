#include <cmath>
#include <numbers>
#include <string_view>

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <accelerate/error.h>
#include <accelerate/schedulers.h>

#include "base/require.h"
#include "base/text/text.h"
#include "optim/schedules/spread.h"

namespace accelerate::detail {

namespace {

using torch::optim::OptimizerOptions;

template <class Options>
bool set_first_beta(OptimizerOptions& options, const double* momentum) {
  auto* typed = dynamic_cast<Options*>(&options);
  if (typed == nullptr) return false;
  if (momentum != nullptr)
    typed->betas({*momentum, std::get<1>(typed->betas())});
  return true;
}

template <class Options>
bool set_plain_momentum(OptimizerOptions& options, const double* momentum) {
  auto* typed = dynamic_cast<Options*>(&options);
  if (typed == nullptr) return false;
  if (momentum != nullptr) typed->momentum(*momentum);
  return true;
}

// LibTorch's option classes have no common interface for momentum. If
// `momentum` is null, only checks whether there is one.
bool set_known(OptimizerOptions& options, const double* momentum) {
  return set_plain_momentum<torch::optim::SGDOptions>(options, momentum) ||
      set_first_beta<torch::optim::AdamOptions>(options, momentum) ||
      set_first_beta<torch::optim::AdamWOptions>(options, momentum) ||
      set_plain_momentum<torch::optim::RMSpropOptions>(options, momentum);
}

// Sets a group's momentum, or the first of its betas: through `custom` if it
// is set, otherwise directly in LibTorch's option classes.
void set_momentum(
    OptimizerOptions& options,
    double momentum,
    const optim::SetMomentum& custom) {
  if (custom) {
    custom(options, momentum);
  } else {
    set_known(options, &momentum);
  }
}

// Throws ConfigError naming `schedule` if a group has no momentum.
void require_momentum(
    torch::optim::Optimizer& optimizer,
    const optim::SetMomentum& custom,
    std::string_view schedule) {
  if (custom) return;
  for (auto& group : optimizer.param_groups()) {
    if (!set_known(group.options(), nullptr)) {
      throw ConfigError(format(
          "[optim] {} cannot cycle the momentum of an optimizer without a "
          "known one; set cycle_momentum to false, or pass set_momentum",
          schedule));
    }
  }
}

}  // namespace

}  // namespace accelerate::detail

namespace accelerate::optim {

namespace {

using accelerate::detail::format;
using accelerate::detail::spread;

}  // namespace

/// A phase that ends at step `end` and goes from the first value to the second.
struct OneCycleLR::Phase {
  double end;
  std::pair<double, double> lr;
  std::pair<double, double> momentum;
};

OneCycleLR::OneCycleLR(OneCycleLROptions options)
    : options_(std::move(options)) {
  detail::require_at_least(
      "optim", "the total_steps of OneCycleLR", options_.total_steps, 1);
  if (!(options_.pct_start >= 0 && options_.pct_start <= 1)) {
    throw ConfigError(format(
        "[optim] the pct_start of OneCycleLR must be from 0 to 1, but is {}",
        options_.pct_start));
  }
}
OneCycleLR::OneCycleLR(
    torch::optim::Optimizer& optimizer,
    OneCycleLROptions options)
    : OneCycleLR(std::move(options)) {
  bind(optimizer);
}

std::optional<std::int64_t> OneCycleLR::total_steps() const {
  return options_.total_steps;
}

void OneCycleLR::begin() {
  spread(options_.max_lr, num_groups(), "max_lr");
  if (options_.cycle_momentum) {
    accelerate::detail::require_momentum(
        *optimizer(), options_.set_momentum, "OneCycleLR");
  }
  for (std::size_t i = 0; i < base_lrs_.size(); ++i) {
    base_lrs_[i] = options_.max_lr[i] / options_.div_factor;
  }
}

std::vector<OneCycleLR::Phase> OneCycleLR::phases(std::size_t group) const {
  const double top = options_.max_lr[group];
  const double first = top / options_.div_factor;
  const double last = first / options_.final_div_factor;
  const auto total = static_cast<double>(options_.total_steps);
  const double low = options_.base_momentum, high = options_.max_momentum;
  if (options_.three_phase) {
    return {
        {options_.pct_start * total - 1, {first, top}, {high, low}},
        {2 * options_.pct_start * total - 2, {top, first}, {low, high}},
        {total - 1, {first, last}, {high, high}}};
  }
  return {
      {options_.pct_start * total - 1, {first, top}, {high, low}},
      {total - 1, {top, last}, {low, high}}};
}

std::pair<double, double> OneCycleLR::lr_and_momentum(
    std::int64_t step,
    std::size_t group) const {
  const auto anneal = [&](const std::pair<double, double>& ends,
                          double fraction) {
    if (options_.anneal_strategy == AnnealStrategy::linear) {
      return (ends.second - ends.first) * fraction + ends.first;
    }
    return ends.second +
        (ends.first - ends.second) / 2 *
        (std::cos(std::numbers::pi * fraction) + 1);
  };
  const auto at = static_cast<double>(step);
  const std::vector<Phase> all = phases(group);
  double begin = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (at <= all[i].end || i + 1 == all.size()) {
      const double fraction = (at - begin) / (all[i].end - begin);
      return {anneal(all[i].lr, fraction), anneal(all[i].momentum, fraction)};
    }
    begin = all[i].end;
  }
  throw InternalError("[optim] a one-cycle schedule has no phases");
}

StateDict OneCycleLR::state_dict() const {
  StateDict state = LRScheduler::state_dict();
  std::vector<double> min_lrs;
  for (const double max_lr : options_.max_lr) {
    min_lrs.push_back(max_lr / options_.div_factor / options_.final_div_factor);
  }
  state.set("max_lrs", options_.max_lr);
  state.set("min_lrs", std::move(min_lrs));
  if (options_.cycle_momentum) {
    state.set("max_momentum", options_.max_momentum);
    state.set("base_momentum", options_.base_momentum);
  }
  return state;
}

double OneCycleLR::get_lr(const LRContext& at) const {
  return lr_and_momentum(at.step, at.group).first;
}

void OneCycleLR::apply() {
  LRScheduler::apply();
  if (!options_.cycle_momentum) return;
  auto& groups = optimizer()->param_groups();
  for (std::size_t i = 0; i < groups.size(); ++i) {
    accelerate::detail::set_momentum(
        groups[i].options(),
        lr_and_momentum(step_, i).second,
        options_.set_momentum);
  }
}

CyclicLR::CyclicLR(CyclicLROptions options) : options_(std::move(options)) {
  if (options_.step_size_up < 1 || options_.step_size_down.value_or(1) < 1) {
    throw ConfigError(format(
        "[optim] step_size_up and step_size_down of CyclicLR must be at least "
        "1, but are {} and {}",
        options_.step_size_up,
        options_.step_size_down.value_or(options_.step_size_up)));
  }
}
CyclicLR::CyclicLR(torch::optim::Optimizer& optimizer, CyclicLROptions options)
    : CyclicLR(std::move(options)) {
  bind(optimizer);
}

void CyclicLR::begin() {
  spread(options_.base_lr, num_groups(), "base_lr");
  spread(options_.max_lr, num_groups(), "max_lr");
  if (options_.cycle_momentum) {
    accelerate::detail::require_momentum(
        *optimizer(), options_.set_momentum, "CyclicLR");
  }
  base_lrs_ = options_.base_lr;
}

void CyclicLR::restart() {
  base_lrs_ = options_.base_lr;
  LRScheduler::restart();
}

double CyclicLR::height_at(std::int64_t step) const {
  const auto up = static_cast<double>(options_.step_size_up);
  const auto total = up +
      static_cast<double>(options_.step_size_down.value_or(
          options_.step_size_up));
  const auto at = static_cast<double>(step);
  const double cycle = std::floor(1 + at / total);
  const double x = 1.0 + at / total - cycle;
  const double ratio = up / total;
  const double slope = x <= ratio ? x / ratio : (x - 1) / (ratio - 1);
  const auto scale = [&]() -> double {
    if (options_.scale_fn)
      return options_.scale_fn(options_.scale_by_step ? at : cycle);
    switch (options_.mode) {
      case CyclicMode::triangular:
        return 1.0;
      case CyclicMode::triangular2:
        return 1 / std::pow(2.0, cycle - 1);
      case CyclicMode::exp_range:
        return std::pow(options_.gamma, at);
    }
    return 1.0;
  };
  return slope * scale();
}

double CyclicLR::get_lr(const LRContext& at) const {
  const double base = options_.base_lr[at.group];
  return base + (options_.max_lr[at.group] - base) * height_at(at.step);
}

void CyclicLR::apply() {
  LRScheduler::apply();
  if (!options_.cycle_momentum) return;
  const double momentum = options_.max_momentum -
      (options_.max_momentum - options_.base_momentum) * height_at(step_);
  for (auto& group : optimizer()->param_groups()) {
    accelerate::detail::set_momentum(
        group.options(), momentum, options_.set_momentum);
  }
}

}  // namespace accelerate::optim
