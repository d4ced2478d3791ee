#pragma once

#include <memory>

#include <accelerate/activation_checkpointing.h>

#include "parallel/strategy.h"

namespace accelerate::detail {

/// Computes activations of chosen modules again in backward (activations/),
/// whatever else is done with the model.
std::unique_ptr<Strategy> make_activation_checkpointing(
    const ActivationCheckpointingOptions& options);

}  // namespace accelerate::detail
