#include "precision/fp8/float8_matrix.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>

#include <accelerate/error.h>

#include "base/text.h"

namespace accelerate::detail {

namespace {

// Values that one thread casts at once.
constexpr std::int64_t kCastTogether = 1 << 15;

/// A contiguous matrix in host memory, as kernels see it.
struct HostMatrix {
  /// Without a dtype only its largest value is looked for.
  HostMatrix(const at::Tensor& matrix, std::optional<at::ScalarType> dtype)
      : tensor(matrix.contiguous()),
        rows(matrix.size(0)),
        columns(matrix.size(1)) {
    if (dtype) {
      format = static_cast<std::size_t>(float8_format(*dtype));
      values = at::empty(matrix.sizes(), matrix.options().dtype(*dtype));
      codes = static_cast<std::uint8_t*>(values.mutable_data_ptr());
    }
    switch (tensor.scalar_type()) {
      case at::kBFloat16:
        source = CastSource::bfloat16;
        break;
      case at::kHalf:
        source = CastSource::float16;
        break;
      default:
        tensor = tensor.to(at::kFloat);
        source = CastSource::float32;
    }
    data = static_cast<const std::byte*>(tensor.const_data_ptr());
    element_size = static_cast<std::int64_t>(tensor.element_size());
  }

  [[nodiscard]] const void* at_element(std::int64_t index) const {
    return data + index * element_size;
  }
  [[nodiscard]] std::int64_t size() const { return rows * columns; }
  [[nodiscard]] float amax(std::int64_t begin, std::int64_t count) const {
    return kernels.amax[static_cast<std::size_t>(source)](
        at_element(begin), count);
  }
  void cast(std::int64_t begin, std::int64_t count, float scale) const {
    kernels.cast[format][static_cast<std::size_t>(source)](
        at_element(begin), count, scale, codes + begin);
  }
  void cast_columns(std::int64_t begin, std::int64_t count, const float* scales)
      const {
    kernels.cast_columns[format][static_cast<std::size_t>(source)](
        at_element(begin), count, scales, codes + begin);
  }
  void amax_of_columns(std::int64_t begin, std::int64_t count, float* found)
      const {
    kernels.amax_of_columns[static_cast<std::size_t>(source)](
        at_element(begin), count, found);
  }

  const CastKernels& kernels = cast_kernels();
  at::Tensor tensor;
  std::int64_t rows;
  std::int64_t columns;
  std::size_t format = 0;
  at::Tensor values = {};
  std::uint8_t* codes = nullptr;
  CastSource source = CastSource::float32;
  const std::byte* data = nullptr;
  std::int64_t element_size = 0;
};

// The larger of two, NaN if one is.
float larger_or_nan(float a, float b) { return std::isnan(a) || a > b ? a : b; }

float amax_of_host(const HostMatrix& matrix) {
  const std::int64_t parts =
      (matrix.size() + kCastTogether - 1) / kCastTogether;
  std::vector<float> found(static_cast<std::size_t>(parts), 0.0F);
  at::parallel_for(0, parts, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t part = begin; part < end; ++part) {
      const std::int64_t first = part * kCastTogether;
      found[static_cast<std::size_t>(part)] =
          matrix.amax(first, std::min(kCastTogether, matrix.size() - first));
    }
  });
  float amax = 0;
  for (const float each : found) amax = larger_or_nan(amax, each);
  return amax;
}

void cast_all(
    const HostMatrix& matrix,
    float scale,
    std::optional<std::uint32_t> seed) {
  const std::int64_t parts =
      (matrix.size() + kCastTogether - 1) / kCastTogether;
  at::parallel_for(0, parts, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t part = begin; part < end; ++part) {
      const std::int64_t first = part * kCastTogether;
      const std::int64_t count = std::min(kCastTogether, matrix.size() - first);
      if (!seed) {
        matrix.cast(first, count, scale);
        continue;
      }
      // Each part has numbers of its own, so threads do not change the result.
      matrix.kernels.cast_randomly[matrix.format][static_cast<std::size_t>(
          matrix.source)](
          matrix.at_element(first),
          count,
          scale,
          *seed + static_cast<std::uint32_t>(part) * 0x85ebca6bU,
          matrix.codes + first);
    }
  });
}

at::Tensor new_scales(at::IntArrayRef sizes) {
  return at::empty(sizes, at::TensorOptions().dtype(at::kFloat));
}

/// Computes a scale from the largest absolute value.
struct ScaleRule {
  explicit ScaleRule(const DynamicCast& cast)
      : format(float8_format(cast.dtype)),
        power_of_2(cast.power_of_2),
        is_block(cast.granularity == Float8Granularity::blocks) {}

  float operator()(float amax) const {
    return is_block ? scale_of_e8m0(e8m0_of_amax(amax, format))
                    : scale_of_amax(amax, format, power_of_2);
  }

  Float8Format format;
  bool power_of_2;
  bool is_block;
};

// Each row in groups of `together` values, each group with its scale.
at::Tensor cast_along_rows(
    const HostMatrix& matrix,
    const ScaleRule& rule,
    std::int64_t together) {
  const std::int64_t groups = (matrix.columns + together - 1) / together;
  at::Tensor scales = new_scales({matrix.rows, groups});
  auto* const out = scales.mutable_data_ptr<float>();
  const std::int64_t grain =
      std::max<std::int64_t>(kCastTogether / matrix.columns, 1);
  at::parallel_for(
      0, matrix.rows, grain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          for (std::int64_t group = 0; group < groups; ++group) {
            const std::int64_t column = group * together;
            const std::int64_t first = row * matrix.columns + column;
            const std::int64_t count =
                std::min(together, matrix.columns - column);
            const float scale = rule(matrix.amax(first, count));
            out[row * groups + group] = scale;
            matrix.cast(first, count, scale);
          }
        }
      });
  return scales;
}

// Each column in groups of `together` values. Groups of rows are read from
// beginning to end, in pieces of columns that stay in the cache.
at::Tensor cast_along_columns(
    const HostMatrix& matrix,
    const ScaleRule& rule,
    std::int64_t together) {
  constexpr std::int64_t kPiece = 512;
  const std::int64_t groups = (matrix.rows + together - 1) / together;
  const std::int64_t pieces = (matrix.columns + kPiece - 1) / kPiece;
  at::Tensor scales = at::zeros(
      {groups, matrix.columns}, at::TensorOptions().dtype(at::kFloat));
  auto* const out = scales.mutable_data_ptr<float>();
  at::parallel_for(
      0, groups * pieces, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          const std::int64_t first_row = i / pieces * together;
          const std::int64_t last_row =
              std::min(first_row + together, matrix.rows);
          const std::int64_t column = i % pieces * kPiece;
          const std::int64_t count = std::min(kPiece, matrix.columns - column);
          float* const own = out + i / pieces * matrix.columns + column;
          for (std::int64_t row = first_row; row < last_row; ++row)
            matrix.amax_of_columns(row * matrix.columns + column, count, own);
          std::transform(own, own + count, own, rule);
          for (std::int64_t row = first_row; row < last_row; ++row)
            matrix.cast_columns(row * matrix.columns + column, count, own);
        }
      });
  return scales;
}

std::int64_t checked_dim(const at::Tensor& matrix, std::int64_t dim) {
  if (matrix.dim() != 2 || dim < -2 || dim > 1) {
    throw InternalError(format(
        "[precision] a float8 cast along dimension {} was asked for of a "
        "tensor of shape {}",
        dim,
        matrix.sizes()));
  }
  return dim < 0 ? dim + 2 : dim;
}

// Rounded down to powers of two; 0 and NaN stay.
at::Tensor powers_of_2(const at::Tensor& scales) {
  const at::Tensor exponents = std::get<1>(at::frexp(scales)).to(at::kDouble);
  return at::where(
      scales.gt(0).logical_and(at::isfinite(scales)),
      at::exp2(exponents - 1),
      scales);
}

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
  // Rounded down is what the reciprocal of one rounded up is.
  const at::Tensor scales = powers_of_2(largest / exact);
  return scales.clamp(std::ldexp(1.0, -127), std::ldexp(1.0, 127))
      .to(at::kFloat);
}

at::Tensor saturated(const at::Tensor& scaled, at::ScalarType dtype) {
  const double largest = largest_value(float8_format(dtype));
  return scaled.clamp(-largest, largest).to(dtype);
}

// One element per value, for scales of blocks.
at::Tensor spread(const Float8Matrix& matrix) {
  if (!matrix.block_dim) return matrix.scale;
  return matrix.scale.repeat_interleave(kMxBlockSize, *matrix.block_dim)
      .narrow(*matrix.block_dim, 0, matrix.values.size(*matrix.block_dim));
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

}  // namespace

at::Tensor Float8Matrix::dequantize() const {
  return values.to(at::kFloat).div_(spread(*this));
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
          "[precision] {} is not a float8 dtype; use float8_e4m3fn or "
          "float8_e5m2",
          c10::toString(dtype)));
  }
}

float amax_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return 0;
  if (!tensor.is_cpu()) return tensor.abs().max().to(at::kFloat).item<float>();
  return amax_of_host(HostMatrix(tensor.reshape({1, -1}), std::nullopt));
}

Float8Matrix cast_by_operators(
    const at::Tensor& matrix,
    const DynamicCast& cast,
    std::int64_t dim) {
  dim = checked_dim(matrix, dim);
  Float8Matrix made;
  switch (cast.granularity) {
    case Float8Granularity::tensorwise:
      made.scale = scales_by_operators(
          matrix.numel() == 0 ? at::zeros({}, matrix.options())
                              : matrix.abs().max(),
          cast);
      break;
    case Float8Granularity::axiswise:
      made.scale = scales_by_operators(
          matrix.size(dim) == 0
              ? at::zeros_like(matrix.sum({dim}, /*keepdim=*/true))
              : matrix.abs().amax({dim}, /*keepdim=*/true),
          cast);
      break;
    case Float8Granularity::blocks:
      made.block_dim = dim;
      made.scale = scales_by_operators(amax_of_blocks(matrix, dim), cast);
      break;
  }
  made.values = matrix;
  made.values =
      saturated(matrix.to(at::kFloat).contiguous() * spread(made), cast.dtype);
  return made;
}

Float8Matrix cast_dynamically(
    const at::Tensor& matrix,
    const DynamicCast& cast,
    std::int64_t dim) {
  dim = checked_dim(matrix, dim);
  if (!matrix.is_cpu() || matrix.numel() == 0)
    return cast_by_operators(matrix, cast, dim);
  const HostMatrix host(matrix, cast.dtype);
  const ScaleRule rule(cast);
  if (cast.granularity == Float8Granularity::tensorwise) {
    const float scale = rule(amax_of_host(host));
    cast_all(host, scale, std::nullopt);
    return {host.values, at::full({}, scale, at::kFloat)};
  }
  const bool is_blocks = cast.granularity == Float8Granularity::blocks;
  const std::int64_t together = is_blocks ? kMxBlockSize : matrix.size(dim);
  const at::Tensor scales = dim == 1 ? cast_along_rows(host, rule, together)
                                     : cast_along_columns(host, rule, together);
  return {host.values, scales, is_blocks ? std::optional(dim) : std::nullopt};
}

Float8Matrix cast_with_scale(
    const at::Tensor& matrix,
    at::ScalarType dtype,
    float scale,
    std::optional<std::uint32_t> seed) {
  const at::Tensor factor =
      at::full({}, scale, matrix.options().dtype(at::kFloat));
  if (matrix.is_cpu()) {
    const HostMatrix host(matrix, dtype);
    cast_all(host, scale, seed);
    return {host.values, factor};
  }
  if (seed) {
    // Rare, so exactness counts more than the copies through host memory.
    const Float8Matrix made = cast_with_scale(matrix.cpu(), dtype, scale, seed);
    return {made.values.to(matrix.device()), factor};
  }
  return {
      saturated(matrix.to(at::kFloat).contiguous() * factor, dtype), factor};
}

}  // namespace accelerate::detail
