#pragma once

#include <algorithm>
#include <chrono>

namespace accelerate::detail {

/// How often a waiting thread looks again before it sleeps. Looking costs a
/// processor, sleeping some ten microseconds for being woken; so it looks for
/// about as long as that where this has paid recently, and hardly at all where
/// it has not, or where others need the processor. Used by one thread at a time.
class Patience {
 public:
  /// `may_spin`: there are processors for all that run while this thread looks.
  explicit Patience(bool may_spin) : most_(may_spin ? kMost : kLeast) {}

  [[nodiscard]] int num_looks() const { return num_looks_; }
  /// The least, for threads for which nobody waits.
  static constexpr int least() { return kLeast; }

  /// It slept for so long, after looking in vain.
  void slept(std::chrono::nanoseconds time) {
    num_looks_ = time < kWorthwhile ? num_looks_ * 2 : num_looks_ * 3 / 4;
    num_looks_ = std::clamp(num_looks_, kLeast, most_);
  }

 private:
  // Some 100 microseconds, and about one.
  static constexpr int kMost = 2000;
  static constexpr int kLeast = 20;
  static constexpr std::chrono::microseconds kWorthwhile{100};

  int most_;
  int num_looks_ = most_;
};

}  // namespace accelerate::detail
