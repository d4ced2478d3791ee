#pragma once

#include <memory>

#include <accelerate/export.h>

namespace torch::optim {
class LRScheduler;
}

namespace accelerate {

namespace detail {
struct PreparedScheduler;
}

/// A prepared learning-rate schedule. A cheap handle that borrows: the user's
/// scheduler must outlive it.
class ACCELERATE_API Scheduler {
 public:
  explicit Scheduler(std::shared_ptr<detail::PreparedScheduler> prepared)
      : prepared_(std::move(prepared)) {}

  /// Steps if this micro-step ends a window; else does nothing. Counts
  /// optimizer steps, not processes.
  void step() const;

  /// The user's own scheduler.
  [[nodiscard]] torch::optim::LRScheduler& inner() const;

 private:
  std::shared_ptr<detail::PreparedScheduler> prepared_;
};

}  // namespace accelerate
