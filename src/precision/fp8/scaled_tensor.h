#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

namespace accelerate::detail {

/// A tensor in float8 or fp16 with one scale, a power of two, as MS-AMP keeps
/// gradients and optimizer states (Peng et al., FP8-LM: Training FP8 Large
/// Language Models, 2023). Scaling is exact, so casting restored values again
/// changes nothing.
struct ScaledTensor {
  /// Codes, in the shape of the tensor.
  at::Tensor values;
  /// An fp32 scalar on the device of `values`: their factor.
  at::Tensor scale;

  [[nodiscard]] bool defined() const { return values.defined(); }
  /// Returns values / scale.
  [[nodiscard]] at::Tensor restore(at::ScalarType dtype) const;
};

/// Returns, for each amax, the largest power of two that keeps it within the
/// range of `dtype`; 1 for 0; NaN for infinity and NaN, so that one such value
/// makes its entire tensor NaN. fp32, at most 2^115.
at::Tensor powers_of_2_for(const at::Tensor& amax, at::ScalarType dtype);

/// Casts a floating tensor to float8 or fp16 with a scale derived from its
/// amax, rounding to nearest even. Does not wait for the device.
ScaledTensor cast_scaled(const at::Tensor& tensor, at::ScalarType dtype);

/// Casts with a given scale; values beyond the range saturate.
ScaledTensor cast_scaled(
    const at::Tensor& tensor,
    at::ScalarType dtype,
    const at::Tensor& scale);

}  // namespace accelerate::detail
