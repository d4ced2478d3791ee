#include <algorithm>
#include <optional>

#include <accelerate/detail/handles.h>
#include <accelerate/error.h>
#include <accelerate/schedulers.h>

#include "base/text/text.h"

namespace accelerate::optim {

namespace {

using accelerate::detail::format;

void require_schedules(const LRSchedulers& schedules, const char* name) {
  if (schedules.empty())
    throw ConfigError(
        format("[optim] {} must get schedules, but got none", name));
  for (const auto& schedule : schedules) {
    if (!schedule)
      throw ConfigError(
          format("[optim] {} must not get a null schedule, but got one", name));
    if (dynamic_cast<const ReduceLROnPlateau*>(schedule.get()) != nullptr) {
      throw ConfigError(format(
          "[optim] {} cannot combine ReduceLROnPlateau, which needs a metric; "
          "step it by itself",
          name));
    }
  }
}

// Loads all schedules or none: if one fails, the others are unchanged.
void load_schedules(const StateDict& state, const LRSchedulers& schedules) {
  const auto states = state.get<std::vector<StateDict>>("parts");
  if (states.size() != schedules.size()) {
    throw CheckpointError(format(
        "[optim] the state has {} combined schedules, but there are {}",
        states.size(),
        schedules.size()));
  }
  std::vector<StateDict> before;
  try {
    for (std::size_t i = 0; i < schedules.size(); ++i) {
      StateDict present = schedules[i]->state_dict();
      schedules[i]->load_state_dict(states[i]);
      before.push_back(std::move(present));
    }
  } catch (...) {
    for (std::size_t i = before.size(); i-- > 0;)
      schedules[i]->load_state_dict(before[i]);
    throw;
  }
}

}  // namespace

ComposedSchedule::ComposedSchedule(LRSchedulers schedules, const char* name)
    : schedules_(std::move(schedules)), name_(name) {
  require_schedules(schedules_, name_);
}

void ComposedSchedule::begin() {
  if (schedules_.empty()) detail::throw_moved_from(name_);
  if (schedules_.front()->optimizer() != nullptr) {
    for (const auto& schedule : schedules_) {
      std::vector<double>& base = schedule->base_lrs_;
      // The optimizer has gained groups.
      base.insert(
          base.end(),
          base_lrs_.begin() + static_cast<std::ptrdiff_t>(base.size()),
          base_lrs_.end());
      schedule->begin();
    }
    return;
  }
  // Binding one schedule sets learning rates, which the next must not take as
  // its base.
  for (const auto& schedule : schedules_) {
    set_lrs(base_lrs_);
    schedule->bind(*optimizer());
  }
  set_lrs(base_lrs_);
}

double ComposedSchedule::get_lr(const LRContext& at) const { return at.lr; }

StateDict ComposedSchedule::state_dict() const {
  StateDict state = LRScheduler::state_dict();
  std::vector<StateDict> states;
  for (const auto& schedule : schedules_)
    states.push_back(schedule->state_dict());
  state.set("parts", std::move(states));
  return state;
}

void ComposedSchedule::load_state_dict(const StateDict& state) {
  require_bound();
  const std::vector<double> lrs = present_lrs();
  const StateDict before = LRScheduler::state_dict();
  LRScheduler::load_state_dict(state);
  try {
    load_schedules(state, schedules_);
  } catch (...) {
    LRScheduler::load_state_dict(before);
    set_lrs(lrs);
    throw;
  }
  // The schedules have set their own learning rates.
  set_lrs(state.get<std::vector<double>>("last_lrs"));
}

SequentialLR::SequentialLR(
    std::vector<std::int64_t> milestones,
    LRSchedulers schedules)
    : ComposedSchedule(std::move(schedules), "SequentialLR"),
      milestones_(std::move(milestones)) {
  if (milestones_.size() + 1 != schedules_.size()) {
    throw ConfigError(format(
        "[optim] SequentialLR got {} milestones for {} schedules, but must get "
        "one between each two schedules",
        milestones_.size(),
        schedules_.size()));
  }
  if (!std::ranges::is_sorted(milestones_)) {
    throw ConfigError(
        "[optim] the milestones of SequentialLR must be in ascending order, "
        "but are not");
  }
}
SequentialLR::SequentialLR(
    torch::optim::Optimizer& optimizer,
    std::vector<std::int64_t> milestones,
    LRSchedulers schedules)
    : SequentialLR(std::move(milestones), std::move(schedules)) {
  bind(optimizer);
}

void SequentialLR::apply() {
  const auto passed =
      std::upper_bound(milestones_.begin(), milestones_.end(), step_);
  const auto index = static_cast<std::size_t>(passed - milestones_.begin());
  const bool begins =
      step_ == 0 || (index > 0 && milestones_[index - 1] == step_);
  LRScheduler& schedule = *schedules_[index];
  if (begins) {
    schedule.restart();
  } else {
    schedule.step();
  }
  set_lrs(present_lrs());
}

void SequentialLR::restart() {
  step_ = 0;
  apply();
}

ChainedScheduler::ChainedScheduler(LRSchedulers schedules)
    : ComposedSchedule(std::move(schedules), "ChainedScheduler") {}
ChainedScheduler::ChainedScheduler(
    torch::optim::Optimizer& optimizer,
    LRSchedulers schedules)
    : ChainedScheduler(std::move(schedules)) {
  bind(optimizer);
}

std::optional<std::int64_t> ChainedScheduler::total_steps() const {
  std::optional<std::int64_t> least;
  for (const auto& schedule : schedules_) {
    const auto total = schedule->total_steps();
    if (total && (!least || *total < *least)) least = total;
  }
  return least;
}

void ChainedScheduler::apply() {
  for (const auto& schedule : schedules_) {
    if (step_ > 0) {
      schedule->step();
    } else {
      // Not restart(): each schedule begins with the learning rate that the
      // previous one left.
      schedule->step_ = 0;
      schedule->apply();
    }
  }
  set_lrs(present_lrs());
}

void ChainedScheduler::restart() {
  step_ = 0;
  set_lrs(base_lrs_);
  apply();
}

}  // namespace accelerate::optim
