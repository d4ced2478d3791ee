#pragma once

#include <optional>
#include <vector>

#include <accelerate/scheduler.h>
#include <accelerate/state_dict.h>

#include "train/session/prepared.h"

namespace accelerate::detail {

/// Steps, saves and loads the user's schedule, of any class. Borrows it.
class ScheduleAdapter {
 public:
  ScheduleAdapter() = default;
  ScheduleAdapter(const ScheduleAdapter&) = delete;
  ScheduleAdapter& operator=(const ScheduleAdapter&) = delete;
  virtual ~ScheduleAdapter() = default;

  /// Address of the user's schedule, to recognise one that is passed twice.
  [[nodiscard]] virtual const void* address() const = 0;
  /// The optimizer that it changes; null if unknown.
  [[nodiscard]] virtual const torch::optim::Optimizer* optimizer() const {
    return nullptr;
  }

  /// True if scheduler_from_deepspeed() made it.
  [[nodiscard]] virtual bool is_from_deepspeed() const { return false; }
  /// True if scheduler_from_megatron_lm() made it: one step per optimizer step,
  /// for any number of processes.
  [[nodiscard]] virtual bool is_from_megatron_lm() const { return false; }

  /// Throws ConfigError if it needs a metric and gets none, or the reverse.
  virtual void require_accepts(bool has_metric) const = 0;
  /// Takes a step, whether or not one is due.
  virtual void step(const SchedulerStep& step) = 0;
  /// True if it takes no more steps.
  [[nodiscard]] virtual bool has_ended() const { return false; }
  /// One learning rate per parameter group; nothing for a schedule that does
  /// not say which optimizer it changes.
  [[nodiscard]] virtual std::optional<std::vector<double>> last_lrs() const {
    return std::nullopt;
  }
  /// Throws ConfigError if it is not a schedule of torch::optim.
  [[nodiscard]] virtual torch::optim::LRScheduler& torch_schedule() const;

  [[nodiscard]] virtual StateDict state_dict() const = 0;
  /// Throws CheckpointError for a state it cannot take.
  virtual void load_state_dict(const StateDict& state) = 0;
};

}  // namespace accelerate::detail
