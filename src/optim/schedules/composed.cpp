#include <algorithm>
#include <optional>

#include <accelerate/error.h>
#include <accelerate/schedulers.h>

#include "base/text.h"

namespace accelerate::optim {

namespace {

using accelerate::detail::format;

void require_parts(const LRSchedulers& parts, const char* name) {
  if (parts.empty())
    throw ConfigError(format("[optim] {} was given no parts", name));
  for (const auto& part : parts) {
    if (!part)
      throw ConfigError(format("[optim] {} was given an empty part", name));
    if (dynamic_cast<const ReduceLROnPlateau*>(part.get()) != nullptr) {
      throw ConfigError(format(
          "[optim] {} cannot hold ReduceLROnPlateau, which needs a metric; "
          "step it by itself",
          name));
    }
  }
}

StateDict with_parts(StateDict state, const LRSchedulers& parts) {
  std::vector<StateDict> states;
  for (const auto& part : parts) states.push_back(part->state_dict());
  state.set("parts", std::move(states));
  return state;
}

// Loads all parts or none: if one does not fit, the others are unchanged.
void load_parts(const StateDict& state, const LRSchedulers& parts) {
  const auto states = state.get<std::vector<StateDict>>("parts");
  if (states.size() != parts.size()) {
    throw CheckpointError(format(
        "[optim] the state is for {} schedules in one, but there are {}",
        states.size(),
        parts.size()));
  }
  std::vector<StateDict> before;
  try {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      StateDict present = parts[i]->state_dict();
      parts[i]->load_state_dict(states[i]);
      before.push_back(std::move(present));
    }
  } catch (...) {
    for (std::size_t i = before.size(); i-- > 0;)
      parts[i]->load_state_dict(before[i]);
    throw;
  }
}

// `restore_lrs` undoes changes to the learning rates by a state that does not
// fit.
template <class RestoreLRs>
void load_with_parts(
    LRScheduler& whole,
    const StateDict& state,
    const LRSchedulers& parts,
    RestoreLRs&& restore_lrs) {
  const StateDict before = whole.LRScheduler::state_dict();
  whole.LRScheduler::load_state_dict(state);
  try {
    load_parts(state, parts);
  } catch (...) {
    whole.LRScheduler::load_state_dict(before);
    restore_lrs();
    throw;
  }
}

}  // namespace

SequentialLR::SequentialLR(
    std::vector<std::int64_t> milestones,
    LRSchedulers parts)
    : milestones_(std::move(milestones)), parts_(std::move(parts)) {
  require_parts(parts_, "SequentialLR");
  if (milestones_.size() + 1 != parts_.size()) {
    throw ConfigError(format(
        "[optim] SequentialLR was given {} milestones for {} schedules; there "
        "is one milestone between two schedules",
        milestones_.size(),
        parts_.size()));
  }
  if (!std::is_sorted(milestones_.begin(), milestones_.end())) {
    throw ConfigError(
        "[optim] the milestones of SequentialLR are not in ascending order");
  }
}
SequentialLR::SequentialLR(
    torch::optim::Optimizer& optimizer,
    std::vector<std::int64_t> milestones,
    LRSchedulers parts)
    : SequentialLR(std::move(milestones), std::move(parts)) {
  bind(optimizer);
}

void SequentialLR::begin() {
  // Binding one schedule sets learning rates that the next must not take as its
  // base.
  for (const auto& part : parts_) {
    set_lrs(base_lrs_);
    part->bind(*optimizer());
  }
  set_lrs(base_lrs_);
}

double SequentialLR::get_lr(const LRContext& at) const { return at.lr; }

void SequentialLR::apply() {
  const auto passed =
      std::upper_bound(milestones_.begin(), milestones_.end(), step_);
  const auto index = static_cast<std::size_t>(passed - milestones_.begin());
  const bool begins =
      step_ == 0 || (index > 0 && milestones_[index - 1] == step_);
  LRScheduler& part = *parts_[index];
  if (begins) {
    part.restart();
  } else {
    part.step();
  }
  set_lrs(present_lrs());
}

void SequentialLR::restart() {
  step_ = 0;
  apply();
}

StateDict SequentialLR::state_dict() const {
  return with_parts(LRScheduler::state_dict(), parts_);
}

void SequentialLR::load_state_dict(const StateDict& state) {
  require_bound();
  load_with_parts(
      *this, state, parts_, [this, lrs = present_lrs()] { set_lrs(lrs); });
  // The parts have set their own learning rates.
  set_lrs(state.get<std::vector<double>>("last_lrs"));
}

ChainedScheduler::ChainedScheduler(LRSchedulers parts)
    : parts_(std::move(parts)) {
  require_parts(parts_, "ChainedScheduler");
}
ChainedScheduler::ChainedScheduler(
    torch::optim::Optimizer& optimizer,
    LRSchedulers parts)
    : ChainedScheduler(std::move(parts)) {
  bind(optimizer);
}

std::optional<std::int64_t> ChainedScheduler::total_steps() const {
  std::optional<std::int64_t> least;
  for (const auto& part : parts_) {
    const auto total = part->total_steps();
    if (total && (!least || *total < *least)) least = total;
  }
  return least;
}

void ChainedScheduler::begin() {
  for (const auto& part : parts_) {
    set_lrs(base_lrs_);
    part->bind(*optimizer());
  }
  set_lrs(base_lrs_);
}

double ChainedScheduler::get_lr(const LRContext& at) const { return at.lr; }

void ChainedScheduler::apply() {
  for (const auto& part : parts_) {
    if (step_ > 0) {
      part->step();
    } else {
      // Not restart(): each schedule begins with the learning rate that the
      // previous one left.
      part->step_ = 0;
      part->apply();
    }
  }
  set_lrs(present_lrs());
}

void ChainedScheduler::restart() {
  step_ = 0;
  set_lrs(base_lrs_);
  apply();
}

StateDict ChainedScheduler::state_dict() const {
  return with_parts(LRScheduler::state_dict(), parts_);
}

void ChainedScheduler::load_state_dict(const StateDict& state) {
  require_bound();
  load_with_parts(
      *this, state, parts_, [this, lrs = present_lrs()] { set_lrs(lrs); });
  // The parts have set their own learning rates.
  set_lrs(state.get<std::vector<double>>("last_lrs"));
}

}  // namespace accelerate::optim
