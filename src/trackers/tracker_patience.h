#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace accelerate::detail {

/// How long a run's trackers may wait for others: for a locked database, a
/// server, a process. Their feed shortens it when the run ends. Thread-safe.
class TrackerPatience {
 public:
  using Clock = std::chrono::steady_clock;

  /// Waits end at this time at the latest, including those in progress.
  void end_by(Clock::time_point end);
  [[nodiscard]] bool is_over() const;
  /// Waits for that long. Returns false, as soon as possible, if its end comes
  /// first.
  bool pause(Clock::duration time) const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  Clock::time_point end_ = Clock::time_point::max();
};

}  // namespace accelerate::detail
