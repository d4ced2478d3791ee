#pragma once

#include <functional>
#include <span>

#include <ATen/core/Tensor.h>

#include "optim/optimizers/fused.h"
#include "parallel/strategy.h"

namespace accelerate::detail {

struct PreparedItems;
struct PreparedOptimizer;

/// Steps on one part of the parameters after another, as strategies ask for it
/// (Strategy::step_parts). `step` steps on those that the optimizer's groups
/// have when it is called.
void step_in_parts(
    const PreparedItems& prepared,
    torch::optim::Optimizer& optimizer,
    const std::function<void()>& step);

/// See ModelCalls.
void step_on_part(
    const PreparedItems& prepared,
    Strategy& strategy,
    std::span<const ParameterPart> parts);

/// Steps with the optimizer's own function, or the one that replaces it.
at::Tensor step_at_once(
    const PreparedOptimizer& prepared,
    const LossClosure& closure,
    const at::Tensor& divisor = {});

}  // namespace accelerate::detail
