#pragma once

#include <functional>

#include <ATen/core/Tensor.h>

namespace accelerate::detail {

class RecordingHooks;

/// Called by fused steps if the host does not know yet whether they are
/// skipped, or if the device records them to be replayed without the host.
/// Tracks which changes of the host's state belong to a step.
class StepHooks {
 public:
  /// `make` is called before each replay, or else now; `undo` afterwards if the
  /// step turns out to be skipped.
  virtual void change(
      std::function<void()> make,
      std::function<void()> undo) = 0;
  /// Float [1], not 0 if gradients are not finite, in which case the kernels
  /// must change nothing; undefined if kernels need not check.
  [[nodiscard]] virtual const at::Tensor& found_inf() const = 0;

  /// The hooks of this thread's steps; null if they have none.
  [[nodiscard]] static StepHooks* current();
  /// The hooks of this thread's steps if they are recorded, else null.
  [[nodiscard]] static RecordingHooks* recording();

 protected:
  ~StepHooks() = default;

 private:
  [[nodiscard]] virtual RecordingHooks* recorder() { return nullptr; }
};

/// The hooks of a step that may be recorded instead of taken.
class RecordingHooks : public StepHooks {
 public:
  /// A 0-d fp32 tensor on `device`, which has the value of `read()` in each
  /// replay. Calls of `read` and of changes keep their order. Throws ConfigError
  /// if the device is not the one that records.
  virtual at::Tensor number(
      const at::Device& device,
      std::function<double()> read) = 0;

 protected:
  ~RecordingHooks() = default;
};

/// While alive, steps that this thread takes have the hooks.
class StepHooksScope {
 public:
  explicit StepHooksScope(StepHooks& hooks);
  ~StepHooksScope();
  StepHooksScope(const StepHooksScope&) = delete;
  StepHooksScope& operator=(const StepHooksScope&) = delete;

 private:
  StepHooks* before_;
};

}  // namespace accelerate::detail
