#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/world.h>

namespace accelerate::detail {

/// Gives all ranks of `group` the mean of their gradients of each parameter,
/// zeros for who has none; a parameter of which none has one gets none. Called
/// by all with as many parameters, of the same shapes and dtypes. In few
/// messages; sums are in `sum_in`, or, unset, in each gradient's own dtype.
void average_gradients(
    const Group& group,
    const std::vector<at::Tensor>& parameters,
    std::optional<at::ScalarType> sum_in = std::nullopt);

}  // namespace accelerate::detail
