#include <algorithm>
#include <limits>

#include <accelerate/error.h>
#include <accelerate/schedulers.h>

#include "base/text/text.h"
#include "optim/schedules/spread.h"

namespace accelerate::optim {

using accelerate::detail::format;

ReduceLROnPlateau::ReduceLROnPlateau(ReduceLROnPlateauOptions options)
    : options_(std::move(options)) {
  if (!(options_.factor < 1)) {
    throw ConfigError(format(
        "[optim] the factor of ReduceLROnPlateau must be below 1, but is {}",
        options_.factor));
  }
}
ReduceLROnPlateau::ReduceLROnPlateau(
    torch::optim::Optimizer& optimizer,
    ReduceLROnPlateauOptions options)
    : ReduceLROnPlateau(std::move(options)) {
  bind(optimizer);
}

void ReduceLROnPlateau::begin() {
  accelerate::detail::spread(options_.min_lr, num_groups(), "min_lr");
  best_ = options_.mode == PlateauMode::min
      ? std::numeric_limits<double>::infinity()
      : -std::numeric_limits<double>::infinity();
  num_bad_steps_ = 0;
  cooldown_counter_ = 0;
}

void ReduceLROnPlateau::restart() {
  begin();
  LRScheduler::restart();
}

double ReduceLROnPlateau::get_lr(const LRContext& at) const { return at.lr; }

void ReduceLROnPlateau::step() {
  throw ConfigError(
      "[optim] ReduceLROnPlateau was stepped without a metric; call "
      "step(metric), with the same metric on every rank");
}

bool ReduceLROnPlateau::is_better(double metric) const {
  const bool is_relative = options_.threshold_mode == ThresholdMode::rel;
  if (options_.mode == PlateauMode::min) {
    return metric < (is_relative ? best_ * (1 - options_.threshold)
                                 : best_ - options_.threshold);
  }
  return metric > (is_relative ? best_ * (1 + options_.threshold)
                               : best_ + options_.threshold);
}

void ReduceLROnPlateau::step(double metric) {
  require_bound();
  ++step_;
  if (is_better(metric)) {
    best_ = metric;
    num_bad_steps_ = 0;
  } else {
    ++num_bad_steps_;
  }
  if (cooldown_counter_ > 0) {
    --cooldown_counter_;
    num_bad_steps_ = 0;
  }
  std::vector<double> lrs = present_lrs();
  accelerate::detail::spread(options_.min_lr, lrs.size(), "min_lr");
  if (num_bad_steps_ > options_.patience) {
    for (std::size_t i = 0; i < lrs.size(); ++i) {
      const double lower =
          std::max(lrs[i] * options_.factor, options_.min_lr[i]);
      if (lrs[i] - lower > options_.eps) lrs[i] = lower;
    }
    cooldown_counter_ = options_.cooldown;
    num_bad_steps_ = 0;
  }
  set_lrs(lrs);
}

StateDict ReduceLROnPlateau::state_dict() const {
  StateDict state = LRScheduler::state_dict();
  state.set("best", best_);
  state.set("num_bad_steps", num_bad_steps_);
  state.set("cooldown_counter", cooldown_counter_);
  return state;
}

void ReduceLROnPlateau::load_state_dict(const StateDict& state) {
  const auto best = state.get<double>("best");
  const auto num_bad_steps = state.get<std::int64_t>("num_bad_steps");
  const auto cooldown_counter = state.get<std::int64_t>("cooldown_counter");
  LRScheduler::load_state_dict(state);
  best_ = best;
  num_bad_steps_ = num_bad_steps;
  cooldown_counter_ = cooldown_counter;
}

}  // namespace accelerate::optim
