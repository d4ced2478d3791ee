#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "optim/optimizers/step_hooks.h"
#include "precision/arriving_numbers.h"

namespace accelerate::detail {

struct PreparedOptimizer;
struct Session;

/// Lets the strategies finish gradients if the window is complete. Called
/// before gradients are read.
void complete_gradients(Session& session);

/// Adapts the scale if steps were taken since it was last adapted, and rescales
/// all gradients that await a step to match it. Called before a backward.
void settle_scale(Session& session);

/// Unscales the gradients that await a step of this optimizer, once.
void unscale(Session& session, PreparedOptimizer& optimizer);
/// Unscales the gradients of every optimizer that steps on any of `parameters`.
void unscale_parameters(
    Session& session,
    const std::vector<at::Tensor>& parameters);

/// Runs the optimizer's step, skipped if fp16 gradients are not finite. Returns
/// the closure's result. `divisor` is that of step_inner().
at::Tensor scaled_step(
    Session& session,
    PreparedOptimizer& optimizer,
    const std::function<at::Tensor()>& closure,
    const at::Tensor& divisor);

/// A step whose kernels skip themselves if gradients are not finite, so that
/// the host need not wait to find out.
class DeferredStep final : public StepHooks {
 public:
  /// `found_inf`: float [1] on a device. Starts copying its value to the host.
  explicit DeferredStep(at::Tensor found_inf);

  void change(std::function<void()> make, std::function<void()> undo) override;
  [[nodiscard]] const at::Tensor& found_inf() const override {
    return found_inf_;
  }

  /// Waits for the device's answer, not for the step.
  [[nodiscard]] bool was_skipped();
  void undo() const;

 private:
  at::Tensor found_inf_;
  ArrivingNumbers on_host_;
  std::vector<std::function<void()>> undo_;
};

/// Whether the optimizer can step before the host knows if gradients are
/// finite: one process takes fused steps on a device, on models without
/// techniques.
[[nodiscard]] bool can_defer(const PreparedOptimizer& optimizer);
/// Takes the step; its gradients must be unscaled.
void take_deferred_step(
    PreparedOptimizer& optimizer,
    const at::Tensor& divisor);

}  // namespace accelerate::detail
