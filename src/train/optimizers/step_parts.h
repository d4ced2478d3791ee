#pragma once

#include <functional>

#include "train/session/session.h"

namespace accelerate::detail {

/// Steps on one part of the parameters after another, as strategies ask for it
/// (Strategy::step_parts). `step` steps on those that the optimizer's groups
/// have when it is called.
void step_in_parts(
    const PreparedOptimizer& prepared,
    const std::function<void()>& step);

}  // namespace accelerate::detail
