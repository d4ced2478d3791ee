#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace accelerate::detail {

using LossClosure = torch::optim::Optimizer::LossClosure;

/// Takes the step of `optimizer` by kernels for many parameters at once, on the
/// options and the state of its own class; runs `closure` first, with
/// gradients, and returns its loss.
using FusedStep = at::Tensor (*)(
    torch::optim::Optimizer& optimizer,
    const LossClosure& closure);

/// The fused step for an optimizer of exactly torch::optim::AdamW, Adam, SGD,
/// Adagrad or RMSprop; null for any other class, subclasses included, since
/// they may override step(). Sparse gradients and complex parameters get
/// LibTorch's own step.
[[nodiscard]] FusedStep fused_step_of(const torch::optim::Optimizer& optimizer);

}  // namespace accelerate::detail
