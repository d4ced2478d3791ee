#pragma once

#include <functional>

#include <ATen/core/Tensor.h>

namespace accelerate::detail {

/// What fused steps call if the host does not know yet whether they are
/// skipped, or if the device records them to be replayed later without the
/// host: which numbers the kernels must read from memory, and which changes of
/// the host's state belong to a step.
class StepHooks {
 public:
  /// Whether the step is recorded. If not, it is taken now.
  [[nodiscard]] virtual bool is_recording() const = 0;
  /// A 0-d fp32 tensor on `device`, which has the value of `read()` in each
  /// replay. Calls of `read` and of changes keep their order. Called only while
  /// recording. Throws ConfigError if the device is not the one that records.
  virtual at::Tensor number(
      const at::Device& device,
      std::function<double()> read) = 0;
  /// `make` is called before each replay, or else now; `undo` afterwards if the
  /// step turns out to be skipped.
  virtual void change(
      std::function<void()> make,
      std::function<void()> undo) = 0;
  /// Float [1], not 0 if gradients are not finite, in which case the kernels
  /// must change nothing; undefined if that is not to be looked at.
  [[nodiscard]] virtual const at::Tensor& found_inf() const = 0;

  /// The hooks of this thread's steps; null if they have none.
  [[nodiscard]] static StepHooks* current();
  /// The hooks of this thread's steps; null if they are not recorded.
  [[nodiscard]] static StepHooks* recording();

 protected:
  ~StepHooks() = default;
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
