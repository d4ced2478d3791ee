#include "precision/fp8/float8_matrix.h"

#include <algorithm>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "precision/fp8/device_casts.h"
#include "precision/fp8/host_casts.h"
#include "precision/fp8/operator_casts.h"

namespace accelerate::detail {

namespace {

std::int64_t checked_dim(const at::Tensor& matrix, std::int64_t dim) {
  if (matrix.dim() != 2 || dim < -2 || dim > 1) {
    throw InternalError(format(
        "[precision] a float8 cast along dimension {} is not possible for a "
        "tensor of shape {}",
        dim,
        matrix.sizes()));
  }
  return dim < 0 ? dim + 2 : dim;
}

bool has_kernels(const at::Tensor& matrix) {
  return matrix.is_cpu() && matrix.numel() > 0;
}

Float8Matrix scaled_by_operators(
    const at::Tensor& matrix,
    at::ScalarType dtype,
    const at::Tensor& scale,
    RoundingSeed seed) {
  return {scaled_cast(matrix, scale, dtype, /*limits=*/true, seed), scale};
}

}  // namespace

at::Tensor Float8Matrix::dequantize() const {
  if (has_kernels(values)) {
    if (values.is_contiguous()) return host_dequantize(*this);
    if (values.t().is_contiguous()) return host_dequantize(transposed()).t();
  }
  return values.to(at::kFloat).div_(spread_scales(*this));
}

Float8Matrix Float8Matrix::transposed() const {
  const bool has_copy = transposed_values.defined();
  return {
      has_copy ? transposed_values : values.t(),
      scale.dim() == 2 ? scale.t() : scale,
      block_dim ? std::optional(1 - *block_dim) : std::nullopt,
      has_copy ? values : at::Tensor()};
}

at::Tensor Float8Matrix::e8m0_scales() const {
  return scale.reciprocal().to(at::kFloat8_e8m0fnu);
}

Float8Format float8_format(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat8_e4m3fn:
      return Float8Format::e4m3fn;
    case at::kFloat8_e5m2:
      return Float8Format::e5m2;
    case at::kFloat8_e4m3fnuz:
      return Float8Format::e4m3fnuz;
    case at::kFloat8_e5m2fnuz:
      return Float8Format::e5m2fnuz;
    default:
      throw ConfigError(format(
          "[precision] the dtype must be float8_e4m3fn or "
          "float8_e5m2, but is {}",
          c10::toString(dtype)));
  }
}

at::Tensor amax_of(const at::Tensor& tensor) {
  if (const auto amax = device_amax(tensor)) return *amax;
  if (has_kernels(tensor)) return at::full({}, host_amax(tensor), at::kFloat);
  return amax_by_operators(tensor).to(at::kFloat);
}

at::Tensor scale_of(const at::Tensor& amax, const DynamicCast& cast) {
  if (amax.is_cpu() && amax.dim() == 0)
    return at::full({}, scale_of_number(amax.item<float>(), cast), at::kFloat);
  return scales_by_operators(amax, cast);
}

Float8Matrix cast_dynamically(
    const at::Tensor& matrix,
    const DynamicCast& cast,
    std::int64_t dim,
    RoundingSeed seed,
    bool also_transposed) {
  dim = checked_dim(matrix, dim);
  if (auto made = device_cast(matrix, cast, dim, {seed, also_transposed}))
    return *std::move(made);
  return has_kernels(matrix) ? host_cast(matrix, cast, dim, seed)
                             : cast_by_operators(matrix, cast, dim, seed);
}

Float8Matrix cast_with_others(
    const at::Tensor& matrix,
    const DynamicCast& cast,
    std::int64_t dim,
    const std::vector<MatrixDivision>& divisions,
    RoundingSeed seed,
    bool also_transposed) {
  if (divisions.empty())
    return cast_dynamically(matrix, cast, dim, seed, also_transposed);
  dim = checked_dim(matrix, dim);
  if (cast.granularity == Float8Granularity::tensorwise) {
    const at::Tensor amax = amax_of(matrix);
    for (const MatrixDivision& division : divisions) division.agree(amax);
    return cast_with_scale(
        matrix, cast.dtype, scale_of(amax, cast), seed, also_transposed);
  }
  const auto is_along = [&](const MatrixDivision& division) {
    return division.dim == dim;
  };
  // Scales of blocks, and of rows that are not divided, depend only on this
  // part.
  if (cast.granularity == Float8Granularity::blocks ||
      std::ranges::none_of(divisions, is_along))
    return cast_dynamically(matrix, cast, dim, seed);
  const at::Tensor amax =
      amax_by_operators(matrix, dim).to(at::kFloat).contiguous();
  for (const MatrixDivision& division : divisions) {
    if (is_along(division)) division.agree(amax);
  }
  return scaled_by_operators(
      matrix, cast.dtype, scales_by_operators(amax, cast), seed);
}

Float8Matrix cast_with_scale(
    const at::Tensor& matrix,
    at::ScalarType dtype,
    const at::Tensor& scale,
    RoundingSeed seed,
    bool also_transposed) {
  if (auto made = device_cast_with_scale(
          matrix, dtype, scale, {seed, also_transposed})) {
    return *std::move(made);
  }
  return has_kernels(matrix)
      ? host_cast_with_scale(matrix, dtype, scale.item<float>(), seed)
      : scaled_by_operators(matrix, dtype, scale, seed);
}

MeasuredMatrix cast_and_measure(
    const at::Tensor& matrix,
    at::ScalarType dtype,
    const at::Tensor& scale,
    RoundingSeed seed,
    bool also_transposed) {
  if (auto made = device_cast_and_measure(
          matrix, dtype, scale, {seed, also_transposed})) {
    return *std::move(made);
  }
  if (has_kernels(matrix))
    return host_cast_and_measure(matrix, dtype, scale.item<float>(), seed);
  return {scaled_by_operators(matrix, dtype, scale, seed), amax_of(matrix)};
}

}  // namespace accelerate::detail
