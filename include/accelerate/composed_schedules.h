#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <accelerate/export.h>
#include <accelerate/lr_scheduler.h>
#include <accelerate/state_dict.h>

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

/// Schedules that consist of others.
namespace accelerate::optim {

/// Owned, unbound schedules.
using LRSchedulers = std::vector<std::unique_ptr<LRScheduler>>;

/// At least one schedule, each made without an optimizer, for SequentialLR and
/// ChainedScheduler.
template <class... Ts>
concept UnboundSchedules =
    (std::is_base_of_v<LRScheduler, Ts> && ...) && sizeof...(Ts) > 0;

/// The base class of SequentialLR and ChainedScheduler: schedules of one
/// optimizer.
class ACCELERATE_API ComposedSchedule : public LRScheduler {
 public:
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 protected:
  ComposedSchedule(LRSchedulers schedules, const char* name);
  double get_lr(const LRContext& context) const override;
  void begin() override;

  /// The schedules, in the order given.
  LRSchedulers schedules_;

 private:
  const char* name_;
};

/// One schedule after another; milestone i is the step at which schedule i + 1
/// begins, from its own step 0. Throws ConfigError unless there is one
/// milestone fewer than schedules, in ascending order.
class ACCELERATE_API SequentialLR : public ComposedSchedule {
 public:
  SequentialLR(std::vector<std::int64_t> milestones, LRSchedulers schedules);
  SequentialLR(
      torch::optim::Optimizer& optimizer,
      std::vector<std::int64_t> milestones,
      LRSchedulers schedules);
  template <class... Ts>
    requires UnboundSchedules<Ts...>
  explicit SequentialLR(std::vector<std::int64_t> milestones, Ts&&... schedules)
      : SequentialLR(std::move(milestones), own(std::move(schedules)...)) {}
  template <class... Ts>
    requires UnboundSchedules<Ts...>
  SequentialLR(
      torch::optim::Optimizer& optimizer,
      std::vector<std::int64_t> milestones,
      Ts&&... schedules)
      : SequentialLR(
            optimizer,
            std::move(milestones),
            own(std::move(schedules)...)) {}

 protected:
  void apply() override;
  void restart() override;

 private:
  std::vector<std::int64_t> milestones_;
};

/// All schedules at once, each applied to the learning rates that the previous
/// one left.
class ACCELERATE_API ChainedScheduler : public ComposedSchedule {
 public:
  explicit ChainedScheduler(LRSchedulers schedules);
  ChainedScheduler(torch::optim::Optimizer& optimizer, LRSchedulers schedules);
  template <class... Ts>
    requires UnboundSchedules<Ts...>
  explicit ChainedScheduler(Ts&&... schedules)
      : ChainedScheduler(own(std::move(schedules)...)) {}
  template <class... Ts>
    requires UnboundSchedules<Ts...>
  explicit ChainedScheduler(
      torch::optim::Optimizer& optimizer,
      Ts&&... schedules)
      : ChainedScheduler(optimizer, own(std::move(schedules)...)) {}
  std::optional<std::int64_t> total_steps() const override;

 protected:
  void apply() override;
  void restart() override;
};

}  // namespace accelerate::optim
