#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "precision/fp8/float8_matrix.h"

namespace accelerate::detail {

// The functions of float8_matrix.h for matrices in host memory, by this
// processor's kernels. Matrices must not be empty.

float host_amax(const at::Tensor& tensor);

Float8Matrix host_cast(
    const at::Tensor& matrix,
    const DynamicCast& cast,
    std::int64_t dim,
    RoundingSeed seed);

Float8Matrix host_cast_with_scale(
    const at::Tensor& matrix,
    at::ScalarType dtype,
    float scale,
    RoundingSeed seed);

/// Returns the largest absolute value as `amax`.
MeasuredMatrix host_cast_and_measure(
    const at::Tensor& matrix,
    at::ScalarType dtype,
    float scale,
    RoundingSeed seed);

/// Casts contiguous values.
at::Tensor host_dequantize(const Float8Matrix& matrix);

/// Returns the scale for an amax.
float scale_of_number(float amax, const DynamicCast& cast);

}  // namespace accelerate::detail
