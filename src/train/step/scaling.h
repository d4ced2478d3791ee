#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

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

}  // namespace accelerate::detail
