#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/detail/handles.h>
#include <accelerate/export.h>
#include <accelerate/step_options.h>

namespace torch::optim {
class Optimizer;
class OptimizerParamGroup;
}  // namespace torch::optim

namespace accelerate {

namespace detail {
struct PreparedOptimizer;
}

/// A prepared optimizer. A cheap handle: the user's optimizer must outlive it,
/// unless prepare() was given a unique_ptr or shared_ptr. Using the handle of a
/// destroyed optimizer throws ConfigError. To detect that, the handle watches
/// the optimizer's options; prepare() therefore throws ConfigError if it is to
/// borrow an optimizer with options of a class of the program's own.
class ACCELERATE_API Optimizer {
 public:
  explicit Optimizer(std::shared_ptr<detail::PreparedOptimizer> prepared)
      : prepared_(std::move(prepared)) {}

  /// Steps if this micro-step ends a window (`Accelerator::sync_gradients()`);
  /// otherwise does nothing. With fp16, a step is skipped on all ranks if
  /// gradients are not finite on any of them. `closure` recomputes the loss,
  /// for optimizers that need it (not with fp16). Returns the closure's last
  /// result.
  at::Tensor step(const std::function<at::Tensor()>& closure = nullptr) const;

  /// Clips the gradients and steps, if this micro-step ends a window; otherwise
  /// does nothing and returns an undefined tensor. Call it on all ranks. Equals
  /// `clip_grad_norm_` followed by `step`, but saves a pass over the gradients
  /// where a fused kernel steps (AdamW, Adam, SGD, Adagrad; dense gradients of
  /// at most 32 bits); whether the gradients are clipped afterwards is then
  /// unspecified. Returns the norm before clipping, as `clip_grad_norm_` does.
  /// Throws ConfigError for a `max_norm` that is not above 0, and for an
  /// infinite norm or NaN if `error_if_nonfinite`.
  ///
  ///     optimizer.step({.max_norm = 1.0});
  at::Tensor step(const ClippedStepOptions& options) const;

  /// Drops the gradients, except those of an unfinished window: between a
  /// window's first backward and its step it is a no-op, so a loop can call it
  /// first or last.
  void zero_grad(bool set_to_none = true) const;

  /// True if the last step was skipped because of an infinite gradient.
  [[nodiscard]] bool step_was_skipped() const;

  /// The user's own optimizer: its options, groups and state.
  [[nodiscard]] torch::optim::Optimizer& inner() const;
  /// Its parameter groups, with their options. Changes take effect at the next
  /// step. Include torch/optim/optimizer.h to use them.
  [[nodiscard]] std::vector<torch::optim::OptimizerParamGroup>& param_groups()
      const;
  /// The learning rate of the first parameter group.
  [[nodiscard]] double learning_rate() const;

  [[nodiscard]] const std::shared_ptr<detail::PreparedOptimizer>& prepared()
      const {
    return prepared_;
  }

 private:
  detail::KeptPtr<detail::PreparedOptimizer> prepared_;
};

}  // namespace accelerate
