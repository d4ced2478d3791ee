#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "train/session.h"

namespace accelerate::detail {

/// Before gradients are read: tells the strategies, if the window is complete.
void complete_gradients(Session& session);

/// Before a backward: adapts the scale if steps have been taken since it was,
/// and makes all gradients that wait for a step fit the scale again.
void settle_scale(Session& session);

/// Unscales gradients that wait for a step of this optimizer, once.
void unscale(Session& session, PreparedOptimizer& optimizer);
/// The same for every optimizer that steps on any of `parameters`.
void unscale_parameters(
    Session& session,
    const std::vector<at::Tensor>& parameters);

/// The optimizer's step with what fp16 needs around it. Returns what the
/// closure gave.
at::Tensor scaled_step(
    Session& session,
    PreparedOptimizer& optimizer,
    const std::function<at::Tensor()>& closure);

}  // namespace accelerate::detail
