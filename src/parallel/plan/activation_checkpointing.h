#pragma once

#include <memory>

#include "engines/training_request.h"
#include "parallel/strategy.h"

namespace torch::nn {
class Module;
}

namespace accelerate::detail {

/// Recomputes activations of chosen modules in backward (activations/); works
/// with or without other strategies. `whole_model`: see TechniqueOptions; a
/// stage can lack all of the chosen modules.
std::unique_ptr<Strategy> make_activation_checkpointing(
    const RecomputationRequest& request,
    std::shared_ptr<const torch::nn::Module> whole_model = nullptr);

}  // namespace accelerate::detail
