#pragma once

#include <algorithm>
#include <chrono>

namespace accelerate::detail {

/// How often a waiting thread polls before it sleeps. Polling occupies a
/// processor; waking up from sleep takes some ten microseconds. So it spins for
/// about that long if this has paid off recently, and hardly at all if it has
/// not or if others need the processor. Used by one thread at a time.
class Patience {
 public:
  /// `may_spin`: there are enough processors for all threads that run while
  /// this one polls.
  explicit Patience(bool may_spin) : most_(may_spin ? kMost : kLeast) {}

  [[nodiscard]] int num_looks() const { return num_looks_; }
  /// The minimum, for threads that nothing waits for.
  static constexpr int least() { return kLeast; }

  /// Called after a sleep of `time` that followed polling in vain.
  void slept(std::chrono::nanoseconds time) {
    num_looks_ = time < kWorthwhile ? num_looks_ * 2 : num_looks_ * 3 / 4;
    num_looks_ = std::clamp(num_looks_, kLeast, most_);
  }

 private:
  // About 100 microseconds, and about one.
  static constexpr int kMost = 2000;
  static constexpr int kLeast = 20;
  static constexpr std::chrono::microseconds kWorthwhile{100};

  int most_;
  int num_looks_ = most_;
};

}  // namespace accelerate::detail
