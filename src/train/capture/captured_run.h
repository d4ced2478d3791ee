#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "optim/optimizers/fused.h"
#include "optim/optimizers/step_hooks.h"

namespace accelerate::detail {

struct PreparedOptimizer;
struct Session;

/// What a replay does on the host, and the numbers that it gives the kernels.
struct HostWork {
  /// What runs, in order, before the kernels are launched; some write to
  /// `numbers`.
  std::vector<std::function<void()>> before = {};
  /// What runs after they were launched.
  std::vector<std::function<void()>> after = {};
  std::shared_ptr<std::vector<float>> numbers =
      std::make_shared<std::vector<float>>();
  /// fp32 on the device: where kernels read the numbers.
  at::Tensor memory = {};
};

/// One run of a captured step's function, to which the library's functions
/// report their work on the host. While it is recorded, they leave to replays
/// what another run would undo or repeat.
class CapturedRun final : public RecordingHooks {
 public:
  /// A plain run, of which only the counts below are needed.
  CapturedRun() = default;
  /// A recorded run on `device`, with at most `max_numbers` numbers.
  CapturedRun(at::Device device, std::size_t max_numbers);

  [[nodiscard]] bool is_recording() const { return work_.memory.defined(); }
  /// Makes `action` run in each replay: before the kernels are launched, but
  /// after them once one of the steps may be skipped. Only while recording.
  void repeat(std::function<void()> action);

  at::Tensor number(const at::Device& device, std::function<double()> read)
      override;
  void change(std::function<void()> make, std::function<void()> undo) override;
  [[nodiscard]] const at::Tensor& found_inf() const override {
    return found_inf_;
  }

  /// Begins a step that is skipped if `found_inf` is not 0.
  void begin_skippable_step(at::Tensor found_inf);
  /// Ends it, and returns what undoes its changes.
  std::vector<std::function<void()>> end_skippable_step();

  [[nodiscard]] HostWork take() { return std::move(work_); }

  /// Called when a backward begins.
  void note_backward(const Session& session);
  /// True if the first backward found no gradients to add to.
  [[nodiscard]] bool makes_gradients() const {
    return makes_gradients_.value_or(false);
  }

  /// Number of micro-steps begun, and of steps of prepared optimizers.
  int num_micro_steps = 0;
  int num_steps = 0;

 private:
  [[nodiscard]] RecordingHooks* recorder() override {
    return is_recording() ? this : nullptr;
  }

  HostWork work_;
  at::Tensor found_inf_;
  std::vector<std::function<void()>> undo_;
  bool has_skippable_step_ = false;
  std::optional<bool> makes_gradients_ = std::nullopt;
};

/// The run that is recorded now; null if none is.
[[nodiscard]] CapturedRun* recorded_run(const Session& session);

/// Takes the optimizer's step while it is recorded; `divisor` is that of
/// step_inner(). Throws ConfigError if it cannot be.
void record_step(
    PreparedOptimizer& optimizer,
    const LossClosure& closure,
    const at::Tensor& divisor);

/// While alive, the session's functions report to `run`.
class CapturedRunScope {
 public:
  CapturedRunScope(Session& session, CapturedRun& run);
  ~CapturedRunScope();
  CapturedRunScope(const CapturedRunScope&) = delete;
  CapturedRunScope& operator=(const CapturedRunScope&) = delete;

 private:
  Session& session_;
};

}  // namespace accelerate::detail
