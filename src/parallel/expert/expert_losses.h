#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <accelerate/experts.h>

#include "parallel/expert/expert_layer_state.h"

namespace accelerate::detail {

/// Sets the losses of `state`. `assigned`: this rank's number of assignments by
/// expert, before any were dropped. Collective among the ranks whose tokens the
/// balance loss counts, if it has a coefficient.
void compute_losses(
    const RouterOptions& options,
    const Routing& routing,
    const std::vector<std::int64_t>& assigned,
    ExpertLayerState& state);

struct NamedExpertLayer {
  /// In its model.
  std::string name;
  ExpertLayerImpl* layer = nullptr;
};
/// The ExpertLayers of a model, in the order of named_modules().
std::vector<NamedExpertLayer> expert_layers(const torch::nn::Module& model);

/// The sum of the losses of a model's layers that nobody has taken since their
/// last forward, which are then taken; undefined if there are none.
at::Tensor take_losses(const torch::nn::Module& model);

/// Returns `output`, whose backward also is one of `loss`, a scalar: so that the
/// loss of a pipeline's stage needs not travel to the last one.
at::Tensor with_loss(const at::Tensor& output, const at::Tensor& loss);

}  // namespace accelerate::detail
