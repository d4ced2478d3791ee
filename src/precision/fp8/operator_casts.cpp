#include <cmath>
#include <limits>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "precision/fp8/operator_casts.h"

namespace accelerate::detail {

namespace {

// Rounds down to powers of two; 0 and NaN stay.
at::Tensor powers_of_2(const at::Tensor& scales) {
  const at::Tensor exponents = std::get<1>(at::frexp(scales)).to(at::kDouble);
  return at::where(
      scales.gt(0).logical_and(at::isfinite(scales)),
      at::exp2(exponents - 1),
      scales);
}

// The largest absolute values of blocks along `dim`.
at::Tensor amax_of_blocks(const at::Tensor& matrix, std::int64_t dim) {
  const std::int64_t size = matrix.size(dim);
  const std::int64_t missing =
      (kMxBlockSize - size % kMxBlockSize) % kMxBlockSize;
  std::vector<std::int64_t> padding{0, 0, 0, 0};
  padding[dim == 1 ? 1 : 3] = missing;
  const at::Tensor padded = at::constant_pad_nd(matrix, padding);
  return padded.unflatten(dim, {-1, kMxBlockSize}).abs().amax({dim + 1});
}

/// The properties of a format that rounding needs; bits are those of fp32.
struct Rounding {
  explicit Rounding(Float8Format type)
      : mantissa_bits(
            type == Float8Format::e4m3fn || type == Float8Format::e4m3fnuz ? 3
                                                                           : 2),
        bias(
            (mantissa_bits == 3 ? 7 : 15) +
            (type == Float8Format::e4m3fnuz || type == Float8Format::e5m2fnuz
                 ? 1
                 : 0)) {}

  std::int64_t mantissa_bits;
  std::int64_t bias;
  /// Number of fp32 mantissa bits that are rounded away.
  std::int64_t shift = 23 - mantissa_bits;
};

constexpr std::int64_t kWord = 0xffffffff;

// The numbers of the kernels' RandomWords, in 64-bit integers. Products may
// overflow: only their low words count.
at::Tensor random_words(const at::Tensor& like, std::uint32_t seed) {
  const at::Tensor places =
      at::arange(like.numel(), like.options().dtype(at::kLong))
          .view(like.sizes());
  const at::Tensor seeds =
      places.bitwise_right_shift(32).mul(0x85ebca6b).add_(seed);
  const auto low = [](const at::Tensor& x) { return x.bitwise_and(kWord); };
  at::Tensor x = low(low(places).mul(0x9e3779b9) + seeds);
  x = low(x.bitwise_xor(x.bitwise_right_shift(16)).mul(0x7feb352d));
  x = low(x.bitwise_xor(x.bitwise_right_shift(15)).mul(0x846ca68b));
  return x.bitwise_xor(x.bitwise_right_shift(16));
}

// Rounds to fp32 values that the format has, like the kernels' encode_randomly;
// `limited` must not exceed the format's largest value.
at::Tensor rounded_randomly(
    const at::Tensor& limited,
    Float8Format type,
    std::uint32_t seed) {
  const Rounding rounding(type);
  const at::Tensor random = random_words(limited, seed);
  const at::Tensor magnitude =
      limited.abs().view(at::kInt).to(at::kLong).bitwise_and(kWord);
  const at::Tensor normal =
      (magnitude + random.bitwise_right_shift(32 - rounding.shift))
          .bitwise_right_shift(rounding.shift)
          .bitwise_left_shift(rounding.shift)
          .to(at::kInt)
          .view(at::kFloat);
  const at::Tensor shift = ((128 - rounding.bias) -
                            magnitude.bitwise_right_shift(23) + rounding.shift)
                               .clamp(1, 31);
  const at::Tensor mantissa =
      magnitude.bitwise_and(0x7fffff).bitwise_or(0x800000);
  const at::Tensor code = (mantissa + random.bitwise_right_shift(32 - shift))
                              .bitwise_right_shift(shift)
                              .masked_fill(magnitude.lt(0x800000), 0);
  const at::Tensor subnormal = code.to(at::kFloat) *
      std::ldexp(1.0,
                 1 - static_cast<int>(rounding.bias + rounding.mantissa_bits));
  const at::Tensor rounded =
      at::where(magnitude.lt((128 - rounding.bias) << 23), subnormal, normal);
  return at::where(limited.isnan(), limited, rounded.copysign(limited));
}

}  // namespace

at::Tensor scales_by_operators(
    const at::Tensor& amax,
    const DynamicCast& cast) {
  const at::Tensor exact = amax.to(at::kDouble);
  const double largest = largest_value(float8_format(cast.dtype));
  if (cast.granularity != Float8Granularity::blocks) {
    at::Tensor scales = largest / exact.clamp_min(1e-12);
    if (cast.power_of_2) scales = powers_of_2(scales);
    return scales.to(at::kFloat);
  }
  // Rounding down equals the reciprocal of rounding up.
  const at::Tensor scales = powers_of_2(largest / exact);
  return scales.clamp(std::ldexp(1.0, -127), std::ldexp(1.0, 127))
      .to(at::kFloat);
}

at::Tensor amax_by_operators(
    const at::Tensor& matrix,
    std::optional<std::int64_t> dim) {
  // A norm reads the values once, abs().max() three times.
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (!dim) {
    return matrix.numel() == 0 ? at::zeros({}, matrix.options())
                               : at::linalg_vector_norm(matrix, kInfinity);
  }
  return matrix.size(*dim) == 0
      ? at::zeros_like(matrix.sum({*dim}, /*keepdim=*/true))
      : at::linalg_vector_norm(
            matrix, kInfinity, at::IntArrayRef(*dim), /*keepdim=*/true);
}

at::Tensor scaled_cast(
    const at::Tensor& matrix,
    const at::Tensor& scales,
    at::ScalarType dtype,
    bool limits,
    RoundingSeed seed) {
  const auto made_of = [&](at::ScalarType type) {
    return at::empty(matrix.sizes(), matrix.options().dtype(type));
  };
  // Scales with dimensions make the product fp32.
  const at::Tensor factors = scales.dim() == 0 ? scales.view({1, 1}) : scales;
  if (!limits && !seed) {
    at::Tensor values = made_of(dtype);
    return at::mul_out(values, matrix, factors);
  }
  const Float8Format type = float8_format(dtype);
  const double largest = largest_value(type);
  at::Tensor scaled = made_of(at::kFloat);
  at::mul_out(scaled, matrix, factors);
  if (!seed || matrix.numel() == 0) {
    at::Tensor values = made_of(dtype);
    // With scalar limits, LibTorch would cast in a separate pass.
    const at::Tensor limit = at::full({}, largest, scaled.options());
    return at::clamp_out(values, scaled, -limit, limit);
  }
  return rounded_randomly(scaled.clamp_(-largest, largest), type, *seed)
      .to(dtype);
}

at::Tensor spread_scales(const Float8Matrix& matrix) {
  if (!matrix.block_dim) return matrix.scale;
  return matrix.scale.repeat_interleave(kMxBlockSize, *matrix.block_dim)
      .narrow(*matrix.block_dim, 0, matrix.values.size(*matrix.block_dim));
}

Float8Matrix cast_by_operators(
    const at::Tensor& matrix,
    const DynamicCast& cast,
    std::int64_t dim,
    RoundingSeed seed) {
  if (dim < 0) dim += 2;
  Float8Matrix made;
  switch (cast.granularity) {
    case Float8Granularity::tensorwise:
      made.scale = scales_by_operators(amax_by_operators(matrix), cast);
      break;
    case Float8Granularity::axiswise:
      made.scale = scales_by_operators(amax_by_operators(matrix, dim), cast);
      break;
    case Float8Granularity::blocks:
      made.block_dim = dim;
      made.scale = scales_by_operators(amax_of_blocks(matrix, dim), cast);
      break;
  }
  made.values = matrix;
  // Infinities in blocks saturate; with other granularities their scales are 0.
  made.values = scaled_cast(
      matrix,
      spread_scales(made),
      cast.dtype,
      /*limits=*/cast.granularity == Float8Granularity::blocks,
      seed);
  return made;
}

}  // namespace accelerate::detail
