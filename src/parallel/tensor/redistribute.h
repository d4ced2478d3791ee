#pragma once

#include <string_view>

#include <ATen/core/Tensor.h>

#include <accelerate/world.h>

#include "parallel/tensor/split_layers.h"

namespace accelerate::detail {

/// Changes the layout of a tensor by gathering or slicing it. Autograd records
/// this, and backward does the reverse to the gradient. A tensor that every
/// rank has in full has the same gradient on all ranks. The last
/// `num_mixed_dims` dimensions cannot be sliced. `what` names the tensor in
/// messages: throws ConfigError for a dimension that it does not have.
/// Collective.
at::Tensor redistribute(
    const at::Tensor& tensor,
    const LayoutChange& change,
    std::int64_t num_mixed_dims,
    const Group& group,
    std::string_view what);

}  // namespace accelerate::detail
