#pragma once

#include <string_view>

#include <ATen/core/Tensor.h>

#include <accelerate/world.h>

#include "parallel/tensor/split_layers.h"

namespace accelerate::detail {

/// Changes the layout of a tensor: gathers or slices it; autograd records it,
/// so that the gradient takes the opposite way. A tensor that every rank has in
/// full has the same gradient on all of them. Dimension `num_mixed_dims` from
/// the end, and those after it, cannot be sliced. `what` is
/// the tensor, for messages: throws ConfigError for a dimension that it does not
/// have. Collective.
at::Tensor redistribute(
    const at::Tensor& tensor,
    const LayoutChange& change,
    std::int64_t num_mixed_dims,
    const Group& group,
    std::string_view what);

}  // namespace accelerate::detail
