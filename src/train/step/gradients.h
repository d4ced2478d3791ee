#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/step_options.h>

namespace torch::optim {
class Optimizer;
}

namespace accelerate::detail {

class RunTracking;
struct PreparedItems;
struct PreparedOptimizer;
struct Session;

/// Resets the gradient, or sets it to zero in place. Does nothing for an
/// undefined parameter or one without a gradient. Call it without grad mode.
inline void drop_gradient(const at::Tensor& parameter, bool set_to_none) {
  if (!parameter.defined()) return;
  at::Tensor& gradient = parameter.mutable_grad();
  if (!gradient.defined()) return;
  if (set_to_none) {
    gradient.reset();
  } else {
    gradient.zero_();
  }
}

/// The weight of this micro-step's loss in its window. Called once per
/// micro-step: where a loader's end cuts the window short, it also scales the
/// gradients of the window's earlier micro-steps.
double weight_of_micro_step(Session& session);

/// Implements Accelerator::clip_grad_norm_. `parameters` are tensors of models
/// or those that optimizers step on.
at::Tensor clip_gradients(
    Session& session,
    const std::vector<at::Tensor>& parameters,
    double max_norm,
    const ClipNormOptions& options);

/// The tensors of all its groups.
[[nodiscard]] std::vector<at::Tensor> parameters_of(
    const torch::optim::Optimizer& optimizer);

/// The norm of an optimizer's gradients, and what its fused step is to divide
/// them by so that it becomes at most `max_norm`; undefined if they have been
/// clipped here.
struct StepClipping {
  at::Tensor norm;
  at::Tensor divisor;
};
StepClipping clip_for_step(
    const PreparedOptimizer& optimizer,
    const ClippedStepOptions& options);

/// Tells the strategies of all models that `optimizer` has stepped, and writes
/// their figures for the step to the run's journal.
void end_step(
    const PreparedItems& prepared,
    RunTracking& tracking,
    const torch::optim::Optimizer& optimizer);

}  // namespace accelerate::detail
