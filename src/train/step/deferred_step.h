#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "optim/optimizers/step_hooks.h"
#include "precision/arriving_numbers.h"

namespace accelerate::detail {

struct PreparedOptimizer;

/// A step whose kernels skip themselves if gradients are not finite, so that
/// the host need not wait to find out.
class DeferredStep final : public StepHooks {
 public:
  /// `found_inf`: float [1] on a device. Its value begins its way to the host.
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
