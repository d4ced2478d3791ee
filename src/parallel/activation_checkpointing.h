#pragma once

#include <memory>

#include "engines/training_request.h"
#include "parallel/strategy.h"

namespace accelerate::detail {

/// Recomputes activations of chosen modules in backward (activations/); works
/// with every other strategy, or none.
std::unique_ptr<Strategy> make_activation_checkpointing(
    const RecomputationRequest& request);

}  // namespace accelerate::detail
