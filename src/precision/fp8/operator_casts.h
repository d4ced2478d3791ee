#pragma once

#include <ATen/core/Tensor.h>

#include "precision/fp8/float8_matrix.h"

namespace accelerate::detail {

// Parts of casts by LibTorch's operators, which run on any device. All give the
// bits of the kernels.

at::Tensor scales_by_operators(const at::Tensor& amax, const DynamicCast& cast);

/// Casts fp32, limited to the format's largest value.
at::Tensor saturating_cast(
    const at::Tensor& scaled,
    at::ScalarType dtype,
    RoundingSeed seed);

/// Scales that can be broadcast to the matrix.
at::Tensor spread_scales(const Float8Matrix& matrix);

}  // namespace accelerate::detail
