#pragma once

#include <cstdint>

#include <accelerate/state_dict.h>

namespace accelerate::detail {

/// Which micro-step it is, and whether it ends a step. Counts only; touches no
/// tensors.
class StepClock {
 public:
  explicit StepClock(int window) : window_(window), length_(window) {}

  /// A micro-step begins. `ends_early`: the window ends with it, so that no
  /// gradient is carried into the next epoch.
  void begin_micro_step(bool ends_early) {
    length_ = sync_gradients_ ? 1 : length_ + 1;
    micro_step_ = ends_early ? 0 : micro_step_ + 1;
    sync_gradients_ = micro_step_ % window_ == 0;
    ++serial_;
  }

  [[nodiscard]] int window() const { return window_; }
  [[nodiscard]] bool sync_gradients() const { return sync_gradients_; }
  /// Micro-steps of the present window so far, this one included; a full
  /// window's outside all.
  [[nodiscard]] int length() const { return length_; }
  /// The window ends with this micro-step, before it is full.
  [[nodiscard]] bool is_short() const {
    return sync_gradients_ && length_ < window_;
  }
  /// Micro-steps ever begun; 0 outside all windows.
  [[nodiscard]] std::int64_t serial() const { return serial_; }

  [[nodiscard]] StateDict state_dict() const {
    return {{"micro_step", micro_step_}, {"serial", serial_}};
  }
  /// A window that was under way begins again: its gradients are gone.
  void load_state_dict(const StateDict& state) {
    const auto micro_step = state.get<std::int64_t>("micro_step");
    serial_ = state.get<std::int64_t>("serial");
    micro_step_ = micro_step - micro_step % window_;
    length_ = window_;
    sync_gradients_ = true;
  }

 private:
  int window_;
  int length_;
  std::int64_t micro_step_ = 0;
  std::int64_t serial_ = 0;
  bool sync_gradients_ = true;
};

}  // namespace accelerate::detail
