#pragma once

#include <memory>

#include "engines/training_request.h"
#include "parallel/strategy.h"

namespace accelerate::detail {

/// Computes activations of chosen modules again in backward (activations/),
/// whatever else is done with the model.
std::unique_ptr<Strategy> make_activation_checkpointing(
    const RecomputationRequest& request);

}  // namespace accelerate::detail
