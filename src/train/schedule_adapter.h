#pragma once

#include <vector>

#include <accelerate/scheduler.h>
#include <accelerate/state_dict.h>

namespace torch::optim {
class Optimizer;
}

namespace accelerate::detail {

/// One step of a schedule.
struct SchedulerStep {
  bool has_metric = false;
  double metric = 0;
};

/// The user's schedule, of whichever class, as a prepared scheduler steps,
/// saves and loads it. Borrows it.
class ScheduleAdapter {
 public:
  ScheduleAdapter() = default;
  ScheduleAdapter(const ScheduleAdapter&) = delete;
  ScheduleAdapter& operator=(const ScheduleAdapter&) = delete;
  virtual ~ScheduleAdapter() = default;

  /// Address of the user's schedule, by which a second one is recognised.
  [[nodiscard]] virtual const void* address() const = 0;
  /// The optimizer it changes; null where it does not tell.
  [[nodiscard]] virtual const torch::optim::Optimizer* optimizer() const {
    return nullptr;
  }

  /// Throws ConfigError if it is not stepped so, with a metric or without.
  virtual void require_accepts(bool has_metric) const = 0;
  /// Takes a step, whether or not one is due.
  virtual void step(const SchedulerStep& step) = 0;
  /// It takes no more steps.
  [[nodiscard]] virtual bool has_ended() const { return false; }
  /// Throws ConfigError where it does not tell.
  [[nodiscard]] virtual const std::vector<double>& last_lrs() const;
  /// Throws ConfigError where it is none of torch::optim.
  [[nodiscard]] virtual torch::optim::LRScheduler& torch_schedule() const;

  [[nodiscard]] virtual StateDict state_dict() const = 0;
  /// Throws CheckpointError for a state it cannot take.
  virtual void load_state_dict(const StateDict& state) = 0;
};

}  // namespace accelerate::detail
