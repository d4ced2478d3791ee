#pragma once

#include <memory>

#include "engines/training_request.h"
#include "parallel/strategy.h"

namespace accelerate::detail {

/// Recomputes activations of chosen modules in backward (activations/); works
/// with every other strategy, or none. `may_choose_none`: there may be no such
/// module, since the model is a stage of another one.
std::unique_ptr<Strategy> make_activation_checkpointing(
    const RecomputationRequest& request,
    bool may_choose_none);

}  // namespace accelerate::detail
