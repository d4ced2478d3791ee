#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace accelerate::detail {

using LossClosure = torch::optim::Optimizer::LossClosure;

/// Takes the step of `optimizer` by kernels for many parameters at once, on the
/// options and the state of its own class; runs `closure` first, with
/// gradients, and returns its loss. The kernels divide gradients by `divisor`,
/// a float of dimension 0, if it is defined and can_divide().
using FusedStep = at::Tensor (*)(
    torch::optim::Optimizer& optimizer,
    const LossClosure& closure,
    const at::Tensor& divisor);

/// The fused step for an optimizer of exactly torch::optim::AdamW, Adam, SGD,
/// Adagrad or RMSprop, or of the project's own fused classes; null for any other
/// class, subclasses included, since they may override step(). Sparse gradients
/// and complex parameters of LibTorch's classes get LibTorch's own step.
[[nodiscard]] FusedStep fused_step_of(const torch::optim::Optimizer& optimizer);

/// Whether fused steps on the current gradients divide them: by AdamW, Adam,
/// SGD and Adagrad, for dense real gradients of at most 32 bits.
[[nodiscard]] bool can_divide(const torch::optim::Optimizer& optimizer);

}  // namespace accelerate::detail
