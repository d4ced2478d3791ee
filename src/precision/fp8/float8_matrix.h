#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "precision/fp8/scale_rules.h"

namespace accelerate::detail {

/// Which values share a scale.
enum class Float8Granularity {
  tensorwise,  ///< all
  axiswise,    ///< those that a product sums over: a row or a column
  blocks,      ///< kMxBlockSize consecutive of those, with an E8M0 scale
};

/// A cast with scales derived from the values.
struct DynamicCast {
  at::ScalarType dtype = at::kFloat8_e4m3fn;
  Float8Granularity granularity = Float8Granularity::tensorwise;
  /// True for power-of-two scales; those of blocks always are.
  bool power_of_2 = false;

  bool operator==(const DynamicCast&) const = default;
};

/// If set, rounding is stochastic and unbiased. The random numbers are a
/// function of the seed and a value's place in the matrix, the same on every
/// device.
using RoundingSeed = std::optional<std::uint32_t>;

/// A matrix in float8, on any device.
struct Float8Matrix {
  /// [rows, columns].
  at::Tensor values;
  /// The factors, in fp32, of the values before the cast; broadcastable to the
  /// matrix, except for blocks, where one dimension has one element per
  /// kMxBlockSize of the matrix.
  at::Tensor scale;
  /// The dimension along which blocks extend; unset for other granularities.
  std::optional<std::int64_t> block_dim = std::nullopt;
  /// [columns, rows], dense: the transposed values, if they were requested and
  /// a kernel wrote them in the same pass; else undefined.
  at::Tensor transposed_values = {};

  /// Returns values / scale in fp32. Strides are those of the values.
  [[nodiscard]] at::Tensor dequantize() const;
  /// Returns the transposed matrix, which shares this one's memory.
  [[nodiscard]] Float8Matrix transposed() const;
  /// Returns the scales of blocks as E8M0 (kFloat8_e8m0fnu), with which values
  /// are multiplied to restore them.
  [[nodiscard]] at::Tensor e8m0_scales() const;
  [[nodiscard]] std::int64_t nbytes() const {
    return static_cast<std::int64_t>(values.nbytes() + scale.nbytes());
  }
};

/// Returns the format of a float8 dtype. Throws ConfigError for other dtypes.
Float8Format float8_format(at::ScalarType dtype);

/// Returns the largest absolute value as an fp32 scalar on the tensor's device;
/// 0 without elements, NaN if any is NaN. Does not wait for the device.
at::Tensor amax_of(const at::Tensor& tensor);

/// Returns the scales for these amaxes.
at::Tensor scale_of(const at::Tensor& amax, const DynamicCast& cast);

/// Casts a matrix of fp32, bf16, fp16 or fp64 whose product sums over `dim`: 0
/// or 1 (or -1 and -2). Values beyond the largest one saturate, NaN stays.
/// `also_transposed`: whether products will also need the transposed values,
/// in this and the functions below.
Float8Matrix cast_dynamically(
    const at::Tensor& matrix,
    const DynamicCast& cast,
    std::int64_t dim,
    RoundingSeed seed = std::nullopt,
    bool also_transposed = false);

/// How ranks divide a matrix.
struct MatrixDivision {
  /// The dimension that they divide.
  std::int64_t dim = 0;
  /// Maximizes amaxes over all ranks, in place.
  std::function<void(const at::Tensor& amax)> agree;
};

/// Casts a part of a matrix with the scales of the whole matrix: ranks agree on
/// the amaxes of values that they divide. Blocks are the part's own, which
/// match those of the whole matrix if part sizes are multiples of kMxBlockSize.
Float8Matrix cast_with_others(
    const at::Tensor& matrix,
    const DynamicCast& cast,
    std::int64_t dim,
    const std::vector<MatrixDivision>& divisions,
    RoundingSeed seed = std::nullopt,
    bool also_transposed = false);

/// Casts with a given scale, an fp32 scalar on the matrix's device.
Float8Matrix cast_with_scale(
    const at::Tensor& matrix,
    at::ScalarType dtype,
    const at::Tensor& scale,
    RoundingSeed seed = std::nullopt,
    bool also_transposed = false);

/// A cast matrix, and its largest absolute value before the cast.
struct MeasuredMatrix {
  Float8Matrix matrix;
  at::Tensor amax;
};

/// Casts and measures in one pass over the values.
MeasuredMatrix cast_and_measure(
    const at::Tensor& matrix,
    at::ScalarType dtype,
    const at::Tensor& scale,
    RoundingSeed seed = std::nullopt,
    bool also_transposed = false);

/// Casts as cast_dynamically() does, by LibTorch's operators, for devices
/// without kernels.
Float8Matrix cast_by_operators(
    const at::Tensor& matrix,
    const DynamicCast& cast,
    std::int64_t dim,
    RoundingSeed seed = std::nullopt);

}  // namespace accelerate::detail
