#pragma once

#include <memory>

#include "engines/training_request.h"
#include "parallel/strategy.h"

namespace accelerate::detail {

/// Whether a model has an ExpertLayer.
bool has_experts(const torch::nn::Module& model);

/// Divides the experts of each ExpertLayer among the ranks along `expert`, and
/// each expert's MLP among the ranks along `tensor`; tells the layers which
/// ranks they compute with. Other strategies average, shard and save the
/// remaining parameters, whose gradients are scaled such that their mean over
/// the ranks that hold an expert is the mean over all ranks. (Lepikhin et al.,
/// "GShard", 2021; Rajbhandari et al., "DeepSpeed-MoE", 2022.)
std::unique_ptr<Strategy> make_experts(
    const Mesh& mesh,
    const ExpertRequest& request);

}  // namespace accelerate::detail
