#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <accelerate/detail/handles.h>
#include <accelerate/export.h>
#include <accelerate/schedulers.h>

namespace torch::optim {
class LRScheduler;
class ReduceLROnPlateauScheduler;
}  // namespace torch::optim

namespace accelerate {

namespace detail {

struct PreparedScheduler;
class ScheduleAdapter;

/// A schedule of this library or of LibTorch; borrowed.
struct ACCELERATE_API SchedulerReference {
  SchedulerReference(optim::LRScheduler* schedule);
  SchedulerReference(torch::optim::LRScheduler* schedule);
  SchedulerReference(torch::optim::ReduceLROnPlateauScheduler* schedule);

  std::shared_ptr<ScheduleAdapter> schedule;
};

}  // namespace detail

/// A prepared learning-rate schedule. A cheap handle: the user's schedule must
/// outlive it, unless prepare() was given a unique_ptr or shared_ptr.
class ACCELERATE_API Scheduler {
 public:
  explicit Scheduler(std::shared_ptr<detail::PreparedScheduler> prepared)
      : prepared_(std::move(prepared)) {}

  /// Steps if the optimizer did in this micro-step; otherwise a no-op. After
  /// its last step, a schedule stays there. Counts optimizer steps, not
  /// processes (SchedulerOptions). A schedule of this library follows its own
  /// optimizer; a LibTorch schedule follows all that are prepared.
  void step() const;
  /// Steps with a metric, for ReduceLROnPlateau. Every rank must give the same
  /// metric.
  void step(double metric) const;

  /// One learning rate per parameter group, as the next step of the optimizer
  /// uses it. Throws ConfigError for LibTorch's ReduceLROnPlateauScheduler,
  /// which does not say which optimizer it changes, unless exactly one is
  /// prepared.
  [[nodiscard]] std::vector<double> get_last_lr() const;
  /// The learning rate of the first parameter group.
  [[nodiscard]] double learning_rate() const;

  /// The user's own schedule, if it is LibTorch's; throws ConfigError if not.
  [[nodiscard]] torch::optim::LRScheduler& inner() const;

 private:
  detail::KeptPtr<detail::PreparedScheduler> prepared_;
};

}  // namespace accelerate
