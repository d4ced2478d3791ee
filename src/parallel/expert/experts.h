#pragma once

#include <memory>

#include "engines/training_request.h"
#include "parallel/strategy.h"

namespace accelerate::detail {

/// Whether a model has an ExpertLayer.
bool has_experts(const torch::nn::Module& model);

/// Divides the experts of each ExpertLayer among the ranks along `expert`, and
/// each expert's MLP among those along `tensor`; tells the layers which ranks
/// compute with them. Other strategies average, shard and save what is left of
/// the parameters, whose gradients are scaled such that their mean over the
/// ranks that hold an expert is the mean over all. (Lepikhin et al., "GShard",
/// 2021; Rajbhandari et al., "DeepSpeed-MoE", 2022.)
std::unique_ptr<Strategy> make_experts(
    const Mesh& mesh,
    const ExpertRequest& request);

}  // namespace accelerate::detail
