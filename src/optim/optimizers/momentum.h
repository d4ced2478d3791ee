#pragma once

#include <string_view>

#include <torch/optim/optimizer.h>

#include <accelerate/schedulers.h>

namespace accelerate::detail {

/// Sets a group's momentum, or the first of its betas: through `custom` if it
/// is set, otherwise directly in LibTorch's option classes.
void set_momentum(
    torch::optim::OptimizerOptions& options,
    double momentum,
    const optim::SetMomentum& custom);

/// Throws ConfigError naming `schedule` if a group has no momentum.
void require_momentum(
    torch::optim::Optimizer& optimizer,
    const optim::SetMomentum& custom,
    std::string_view schedule);

}  // namespace accelerate::detail
