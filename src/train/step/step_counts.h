#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

namespace accelerate::detail {

/// The numbers of steps that optimizers have made. Each optimizer's thread
/// advances its own count, which is a plain addition; any thread may read them.
class StepCounts {
 public:
  /// Counts an optimizer's steps in `count`, starting at most(). `count` must
  /// outlive the last call of most().
  void add(std::int64_t& count) {
    const std::lock_guard lock(mutex_);
    count = most_of_all();
    counts_.push_back(&count);
  }
  static void advance(std::int64_t& count) {
    std::atomic_ref(count).store(count + 1, std::memory_order_relaxed);
  }
  /// Number of steps of the optimizer that has made the most.
  [[nodiscard]] std::int64_t most() const {
    const std::lock_guard lock(mutex_);
    return most_of_all();
  }

 private:
  [[nodiscard]] std::int64_t most_of_all() const {
    std::int64_t most = 0;
    for (std::int64_t* const count : counts_) {
      most = std::max(
          most, std::atomic_ref(*count).load(std::memory_order_relaxed));
    }
    return most;
  }

  mutable std::mutex mutex_;
  std::vector<std::int64_t*> counts_;
};

}  // namespace accelerate::detail
