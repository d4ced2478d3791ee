#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/world.h>

#include "params/parameter_table.h"

namespace torch::nn {
class Module;
}

namespace accelerate::detail {

/// The rows whose gradients are sparse: weights of torch::nn::Embedding and
/// EmbeddingBag with `sparse`.
std::vector<const Parameter*> sparse_rows(
    const torch::nn::Module& module,
    const ParameterTable& table);

/// Gives all ranks of `group` the mean of their gradients of each parameter, as
/// sparse tensors with the rows of all ranks, which are all that is sent.
/// A gradient that is dense on some rank, because another layer uses the weight
/// as well, becomes dense on all. Ranks without a gradient contribute nothing;
/// if no rank has one, none is set. Collective.
void average_sparse_gradients(
    const Group& group,
    const std::vector<at::Tensor>& parameters);

}  // namespace accelerate::detail
