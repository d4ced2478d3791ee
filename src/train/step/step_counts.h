#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

namespace accelerate::detail {

/// The numbers of steps that optimizers have made. Each optimizer's thread
/// advances its own, which is a plain addition; any thread may ask.
class StepCounts {
 public:
  /// Counts an optimizer's steps from most() on, in `count`, which must outlive
  /// the last question.
  void add(std::int64_t& count) {
    const std::lock_guard lock(mutex_);
    count = most_of_all();
    counts_.push_back(&count);
  }
  static void advance(std::int64_t& count) {
    std::atomic_ref(count).store(count + 1, std::memory_order_relaxed);
  }
  /// Steps of the optimizer that has made most.
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
