#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include "precision/fp8/float8_matrix.h"

namespace accelerate::detail {

// Parts of casts by LibTorch's operators, which run on any device. All give the
// same bits as the kernels.

at::Tensor scales_by_operators(const at::Tensor& amax, const DynamicCast& cast);

/// Returns the largest absolute value of a matrix, or those along `dim`, which
/// is kept with size 1; 0 if there are no values. In the matrix's dtype.
at::Tensor amax_by_operators(
    const at::Tensor& matrix,
    std::optional<std::int64_t> dim = std::nullopt);

/// Returns `matrix` times `scales`, which broadcast to it, in float8. Products
/// beyond the format's largest value saturate. Pass false for `limits` if no
/// product can exceed it, which saves a pass over memory.
at::Tensor scaled_cast(
    const at::Tensor& matrix,
    const at::Tensor& scales,
    at::ScalarType dtype,
    bool limits,
    RoundingSeed seed);

/// Returns scales that broadcast to the matrix.
at::Tensor spread_scales(const Float8Matrix& matrix);

}  // namespace accelerate::detail
