#include "precision/fp8/scaled_tensor.h"

#include <cstdint>
#include <limits>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "precision/fp8/float8_matrix.h"

namespace accelerate::detail {

namespace {

constexpr double kLargestHalf = 65504;
constexpr std::int64_t kExponent = 0x7f800000;

double largest_of(at::ScalarType dtype) {
  return dtype == at::kHalf ? kLargestHalf
                            : largest_value(float8_format(dtype));
}

// Kernels take matrices.
at::Tensor as_row(const at::Tensor& tensor) { return tensor.reshape({1, -1}); }

}  // namespace

at::Tensor ScaledTensor::restore(at::ScalarType dtype) const {
  if (values.scalar_type() == at::kHalf)
    return values.to(at::kFloat).div_(scale).to(dtype);
  return Float8Matrix{as_row(values), scale}
      .dequantize()
      .view(values.sizes())
      .to(dtype);
}

at::Tensor powers_of_2_for(const at::Tensor& amax, at::ScalarType dtype) {
  constexpr double kSmallestAmax = 0x1p-100;
  const at::Tensor found = amax.to(at::kFloat);
  const at::Tensor ratio = at::full_like(found, largest_of(dtype))
                               .div_(found.clamp_min(kSmallestAmax));
  // The power of two below the ratio has the ratio's exponent and no mantissa.
  // It is normal, since an fp32 is below 2^128.
  const at::Tensor scale =
      ratio.view(at::kInt).bitwise_and_(kExponent).view(at::kFloat);
  return at::where(found == 0, at::ones_like(found), scale)
      .masked_fill_(
          at::isfinite(found).logical_not_(),
          std::numeric_limits<float>::quiet_NaN());
}

ScaledTensor cast_scaled(const at::Tensor& tensor, at::ScalarType dtype) {
  return cast_scaled(tensor, dtype, powers_of_2_for(amax_of(tensor), dtype));
}

ScaledTensor cast_scaled(
    const at::Tensor& tensor,
    at::ScalarType dtype,
    const at::Tensor& scale) {
  if (dtype == at::kHalf) {
    return {
        (tensor.to(at::kFloat) * scale)
            .clamp_(-kLargestHalf, kLargestHalf)
            .to(dtype)
            .contiguous(),
        scale};
  }
  return {
      cast_with_scale(as_row(tensor), dtype, scale).values.view(tensor.sizes()),
      scale};
}

}  // namespace accelerate::detail
