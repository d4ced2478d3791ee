#pragma once

#include <cstdint>

namespace accelerate::detail {

/// Which micro-step it is, and whether it ends a step. Counts only; touches no
/// tensors.
class StepClock {
 public:
  explicit StepClock(int window) : window_(window) {}

  /// A micro-step begins. A loader's last batch ends the window early, so that
  /// no gradient is carried into the next epoch.
  void begin_micro_step(bool is_last_batch) {
    micro_step_ = is_last_batch ? 0 : micro_step_ + 1;
    sync_gradients_ = micro_step_ % window_ == 0;
  }

  [[nodiscard]] int window() const { return window_; }
  [[nodiscard]] bool sync_gradients() const { return sync_gradients_; }

 private:
  int window_;
  std::int64_t micro_step_ = 0;
  bool sync_gradients_ = true;
};

}  // namespace accelerate::detail
