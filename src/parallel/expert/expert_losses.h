#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <accelerate/experts.h>

#include "parallel/expert/expert_layer_state.h"

namespace accelerate::detail {

/// Sets the losses of `state`. `assigned`: this rank's number of assignments by
/// expert, before any were dropped; int64, on the tokens' device. Collective among the ranks whose tokens the
/// balance loss counts, if its coefficient is set.
void compute_losses(
    const RouterOptions& options,
    const Routing& routing,
    const at::Tensor& assigned,
    ExpertLayerState& state);

struct NamedExpertLayer {
  /// The layer's name in its model.
  std::string name;
  ExpertLayerImpl* layer = nullptr;
};
/// The ExpertLayers of a model, in the order of named_modules().
std::vector<NamedExpertLayer> expert_layers(const torch::nn::Module& model);

/// Takes the losses of a model's layers that have not been taken since their
/// last forward, and returns their sum; undefined if there are none.
at::Tensor take_losses(const torch::nn::Module& model);

/// Returns `output` such that its backward also runs that of `loss`, a scalar;
/// the loss of a pipeline stage then need not be sent to the last stage.
at::Tensor with_loss(const at::Tensor& output, const at::Tensor& loss);

}  // namespace accelerate::detail
