#pragma once

#include <cstdint>

#include <accelerate/state_dict.h>

namespace accelerate::detail {

/// Counts micro-steps and determines which of them end a step. Touches no
/// tensors.
class StepClock {
 public:
  explicit StepClock(int window) : window_(window), length_(window) {}

  /// Begins a micro-step. `ends_early` ends the window with it, so that no
  /// gradient is carried into the next epoch.
  void begin_micro_step(bool ends_early) {
    length_ = sync_gradients_ ? 1 : length_ + 1;
    micro_step_ = ends_early ? 0 : micro_step_ + 1;
    sync_gradients_ = micro_step_ % window_ == 0;
    ++serial_;
  }

  /// Starts afresh, outside all windows.
  void reset() { *this = StepClock(window_); }
  /// Sets the length of later windows; the next micro-step begins one.
  void set_window(int window) {
    window_ = window;
    length_ = window;
    micro_step_ = 0;
    sync_gradients_ = true;
  }
  /// Overrides the decision for the current micro-step.
  void set_sync_gradients(bool sync_gradients) {
    sync_gradients_ = sync_gradients;
  }

  [[nodiscard]] int window() const { return window_; }
  [[nodiscard]] bool sync_gradients() const { return sync_gradients_; }
  /// Number of micro-steps in the current window so far, including this one;
  /// outside all windows, that of a full window.
  [[nodiscard]] int length() const { return length_; }
  /// True if the window ends with this micro-step before it is full.
  [[nodiscard]] bool is_short() const {
    return sync_gradients_ && length_ < window_;
  }
  /// Number of micro-steps ever begun; 0 outside all windows.
  [[nodiscard]] std::int64_t serial() const { return serial_; }

  [[nodiscard]] StateDict state_dict() const {
    return {{"micro_step", micro_step_}, {"serial", serial_}};
  }
  /// Restarts a window that was in progress, whose gradients are lost.
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
