#pragma once

#include "train/session.h"

namespace accelerate::detail {

/// Throws ConfigError if ranks hold only parts of the model's parameters that
/// `optimizer` steps on, and it may need more than those to compute its updates
/// (see optim::Elementwise). All ranks decide alike.
void require_fitting_optimizer(
    const torch::optim::Optimizer& optimizer,
    const PreparedModel& model);

}  // namespace accelerate::detail
