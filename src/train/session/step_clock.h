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
    ends_early_ = ends_early;
    ++serial_;
  }
  /// Notes how many micro-steps the newest batch of a loader has had so far.
  void note_batch(int num_micro_steps) {
    micro_steps_per_batch_ = num_micro_steps;
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
  /// Ends an unfinished window without a step.
  void restart_window() { set_window(window_); }
  /// Overrides the decision for the current micro-step.
  void set_sync_gradients(bool sync_gradients) {
    sync_gradients_ = sync_gradients;
  }

  [[nodiscard]] int window() const { return window_; }
  [[nodiscard]] bool sync_gradients() const { return sync_gradients_; }
  /// Number of micro-steps in the current window so far, including this one;
  /// outside all windows, that of a full window.
  [[nodiscard]] int length() const { return length_; }
  /// Number of micro-steps of an unfinished window; 0 between windows.
  [[nodiscard]] int position() const {
    return static_cast<int>(micro_step_ % window_);
  }
  /// True if the window ends with this micro-step before it is full.
  [[nodiscard]] bool is_short() const {
    return sync_gradients_ && length_ < window_;
  }
  /// Number of micro-steps by which the window's losses are divided: its true
  /// length if it ends before it is full. Where batches are divided among
  /// micro-steps, each of the last batch's ends a window, and counts as one of
  /// a full window. This is assumed until a batch has had just one.
  [[nodiscard]] int divisor() const {
    const bool is_part = ends_early_ && micro_steps_per_batch_ != 1;
    return is_short() && !is_part ? length_ : window_;
  }
  /// Number of micro-steps ever begun; 0 outside all windows.
  [[nodiscard]] std::int64_t serial() const { return serial_; }

  [[nodiscard]] StateDict state_dict() const {
    return {
        {"micro_step", micro_step_},
        {"serial", serial_},
        {"micro_steps_per_batch", micro_steps_per_batch_}};
  }
  /// Restarts a window that was in progress, whose gradients are lost.
  void load_state_dict(const StateDict& state) {
    const auto micro_step = state.get<std::int64_t>("micro_step");
    serial_ = state.get<std::int64_t>("serial");
    // Earlier versions did not save this value.
    constexpr const char* kPerBatch = "micro_steps_per_batch";
    micro_steps_per_batch_ =
        state.contains(kPerBatch) ? state.get<std::int64_t>(kPerBatch) : 1;
    micro_step_ = micro_step - micro_step % window_;
    length_ = window_;
    sync_gradients_ = true;
  }

 private:
  int window_;
  int length_;
  std::int64_t micro_step_ = 0;
  std::int64_t serial_ = 0;
  /// Number in the newest batch that has had any; 0 until then.
  std::int64_t micro_steps_per_batch_ = 0;
  bool sync_gradients_ = true;
  bool ends_early_ = false;
};

}  // namespace accelerate::detail
