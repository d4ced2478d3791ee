#pragma once

#include <functional>

#include <ATen/core/Tensor.h>

namespace accelerate::detail {

/// Tells fused steps that the device records them, to be replayed later without
/// the host: which numbers the kernels must read from memory, and which changes
/// of the host's state belong to a replay.
class GraphRecorder {
 public:
  /// A 0-d fp32 tensor on `device`, which has the value of `read()` in each
  /// replay. Calls of `read` and of changes keep their order. Throws
  /// ConfigError if the device is not the one that records.
  virtual at::Tensor number(
      const at::Device& device,
      std::function<double()> read) = 0;
  /// `make` is called before each replay, not now; `undo` afterwards if the
  /// step turns out to be skipped.
  virtual void change(
      std::function<void()> make,
      std::function<void()> undo) = 0;
  /// Float [1], not 0 if gradients are not finite, in which case the kernels
  /// must change nothing; undefined if that is not to be looked at.
  [[nodiscard]] virtual const at::Tensor& found_inf() const = 0;

  /// The recorder of this thread's steps; null if they are not recorded.
  [[nodiscard]] static GraphRecorder* current();

 protected:
  ~GraphRecorder() = default;
};

/// While alive, steps that this thread takes are recorded.
class GraphRecorderScope {
 public:
  explicit GraphRecorderScope(GraphRecorder& recorder);
  ~GraphRecorderScope();
  GraphRecorderScope(const GraphRecorderScope&) = delete;
  GraphRecorderScope& operator=(const GraphRecorderScope&) = delete;

 private:
  GraphRecorder* before_;
};

}  // namespace accelerate::detail
