#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "precision/fp8/float8_matrix.h"

namespace accelerate::detail {

// The functions of float8_matrix.h by kernels for CUDA devices, which are
// compiled at run time. Each returns nothing where there are no kernels: on
// other devices, for other formats, without the compiler, or if the kernels
// gave other results on this device than LibTorch's operators when they were
// first needed. None waits for the device, except for that comparison.

/// How a cast rounds, and whether it also writes the transposed values.
struct CastUse {
  RoundingSeed seed = std::nullopt;
  bool also_transposed = false;
};

/// Compares one kind of cast with LibTorch's operators, on values of all
/// magnitudes in the dtype and on the device of `like`.
bool device_casts_are_right(
    const at::Tensor& like,
    at::ScalarType dtype,
    Float8Granularity granularity,
    bool is_random);

std::optional<at::Tensor> device_amax(const at::Tensor& tensor);

std::optional<Float8Matrix> device_cast(
    const at::Tensor& matrix,
    const DynamicCast& cast,
    std::int64_t dim,
    const CastUse& use);

std::optional<Float8Matrix> device_cast_with_scale(
    const at::Tensor& matrix,
    at::ScalarType dtype,
    const at::Tensor& scale,
    const CastUse& use);

std::optional<MeasuredMatrix> device_cast_and_measure(
    const at::Tensor& matrix,
    at::ScalarType dtype,
    const at::Tensor& scale,
    const CastUse& use);

}  // namespace accelerate::detail
