#include <torch/optim/optimizer.h>

#include <accelerate/error.h>
#include <accelerate/schedulers.h>

#include "base/text/text.h"

namespace accelerate::optim {

using accelerate::detail::format;

namespace {

// Returns a value per group; values for groups added since come from `present`.
std::vector<double> completed(
    std::vector<double> values,
    const std::vector<double>& present) {
  for (std::size_t i = values.size(); i < present.size(); ++i)
    values.push_back(present[i]);
  return values;
}

// Gives access to protected members.
struct OpenSchedule : LRScheduler {
  // Groups added to the optimizer since bind() take their present learning
  // rates as base. Schedules with values of their own per group refuse them in
  // begin(), or spread their only value.
  static void adopt_groups(LRScheduler& schedule) {
    std::vector<double>& base = schedule.*(&OpenSchedule::base_lrs_);
    const std::vector<double> present =
        (schedule.*(&OpenSchedule::present_lrs))();
    if (base.size() == present.size()) return;
    if (base.size() > present.size()) {
      throw ConfigError(format(
          "[optim] a schedule was made for {} parameter groups, but its "
          "optimizer has {} now; make another schedule",
          base.size(),
          present.size()));
    }
    const std::vector<double> before = base;
    base = completed(base, present);
    try {
      (schedule.*(&OpenSchedule::begin))();
    } catch (...) {
      base = before;
      throw;
    }
  }
};

}  // namespace

LRScheduler::LRScheduler() = default;
LRScheduler::~LRScheduler() = default;
LRScheduler::LRScheduler(LRScheduler&&) noexcept = default;
LRScheduler& LRScheduler::operator=(LRScheduler&&) noexcept = default;

void LRScheduler::bind(torch::optim::Optimizer& optimizer) {
  if (optimizer_ != nullptr) {
    throw ConfigError(
        "[optim] a schedule must have one optimizer, but was bound to a second "
        "one, or combined after it had one; make schedules for SequentialLR "
        "and ChainedScheduler without an optimizer");
  }
  optimizer_ = &optimizer;
  base_lrs_ = present_lrs();
  step_ = 0;
  begin();
  apply();
}

void LRScheduler::step() {
  require_bound();
  OpenSchedule::adopt_groups(*this);
  if (const auto total = total_steps(); total && step_ >= *total) {
    throw ConfigError(format(
        "[optim] step {} is beyond a schedule's {} steps; raise its "
        "total_steps, or stop stepping it",
        step_ + 1,
        *total));
  }
  ++step_;
  apply();
}

void LRScheduler::step(double) {
  throw ConfigError(
      "[optim] step() got a metric, which only ReduceLROnPlateau uses; call "
      "step() without one");
}

std::optional<std::int64_t> LRScheduler::total_steps() const {
  return std::nullopt;
}

void LRScheduler::apply() {
  std::vector<double> lrs = present_lrs();
  for (std::size_t group = 0; group < lrs.size(); ++group) {
    lrs[group] = get_lr({step_, base_lrs_.at(group), lrs[group], group});
  }
  set_lrs(lrs);
}

void LRScheduler::restart() {
  step_ = 0;
  set_lrs(base_lrs_);
  apply();
}

void LRScheduler::require_bound() const {
  if (optimizer_ != nullptr) return;
  throw ConfigError(
      "[optim] this schedule has no optimizer; pass one to its constructor, or "
      "combine it in a SequentialLR or ChainedScheduler");
}

std::vector<double> LRScheduler::present_lrs() const {
  std::vector<double> lrs;
  for (const auto& group : optimizer_->param_groups())
    lrs.push_back(group.options().get_lr());
  return lrs;
}

std::size_t LRScheduler::num_groups() const {
  return optimizer_->param_groups().size();
}

void LRScheduler::set_lrs(const std::vector<double>& lrs) {
  auto& groups = optimizer_->param_groups();
  for (std::size_t i = 0; i < groups.size(); ++i)
    groups[i].options().set_lr(lrs.at(i));
  last_lrs_ = lrs;
}

StateDict LRScheduler::state_dict() const {
  const std::vector<double> present =
      optimizer_ == nullptr ? base_lrs_ : present_lrs();
  return {
      {"step", step_},
      {"base_lrs", completed(base_lrs_, present)},
      {"last_lrs", completed(last_lrs_, present)}};
}

void LRScheduler::load_state_dict(const StateDict& state) {
  require_bound();
  OpenSchedule::adopt_groups(*this);
  const auto step = state.get<std::int64_t>("step");
  auto base_lrs = state.get<std::vector<double>>("base_lrs");
  const auto last_lrs = state.get<std::vector<double>>("last_lrs");
  if (base_lrs.size() != num_groups() || last_lrs.size() != num_groups()) {
    throw CheckpointError(format(
        "[optim] the state of a schedule has {} parameter groups, but the "
        "optimizer has {}",
        base_lrs.size(),
        num_groups()));
  }
  step_ = step;
  base_lrs_ = std::move(base_lrs);
  set_lrs(last_lrs);
}

}  // namespace accelerate::optim
