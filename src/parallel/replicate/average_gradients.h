#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/world.h>

namespace accelerate::detail {

/// Gives all ranks of `group` the mean of their gradients of each parameter.
/// Ranks without a gradient contribute zeros; if no rank has one, none is set.
/// Collective, with as many parameters of the same shapes and dtypes on all
/// ranks. Uses few, large messages. Sums in `sum_in`; unset: in each gradient's
/// own dtype.
void average_gradients(
    const Group& group,
    const std::vector<at::Tensor>& parameters,
    std::optional<at::ScalarType> sum_in = std::nullopt);

}  // namespace accelerate::detail
