#include "precision/fp8/host_casts.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <ATen/Functions.h>

#include "gate/parallel_ranges.h"

namespace accelerate::detail {

namespace {

// Number of values that one thread casts at once.
constexpr std::int64_t kCastTogether = 1 << 15;

// Calls `function(first, count, piece)` for pieces of a matrix on all threads.
template <class Function>
void for_each_piece(std::int64_t size, Function&& function) {
  const std::int64_t pieces = (size + kCastTogether - 1) / kCastTogether;
  for_parallel_ranges(pieces, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t piece = begin; piece < end; ++piece) {
      const std::int64_t first = piece * kCastTogether;
      function(first, std::min(kCastTogether, size - first), piece);
    }
  });
}

/// A contiguous matrix as kernels read it.
struct SourceMatrix {
  explicit SourceMatrix(const at::Tensor& matrix)
      : tensor(matrix.contiguous()) {
    switch (tensor.scalar_type()) {
      case at::kBFloat16:
        source = static_cast<std::size_t>(CastSource::bfloat16);
        break;
      case at::kHalf:
        source = static_cast<std::size_t>(CastSource::float16);
        break;
      default:
        tensor = tensor.to(at::kFloat);
        source = static_cast<std::size_t>(CastSource::float32);
    }
    data = static_cast<const std::byte*>(tensor.const_data_ptr());
    element_size = static_cast<std::int64_t>(tensor.element_size());
  }

  [[nodiscard]] const void* at_element(std::int64_t index) const {
    return data + index * element_size;
  }
  [[nodiscard]] std::int64_t size() const { return tensor.numel(); }
  [[nodiscard]] float amax(std::int64_t first, std::int64_t count) const {
    return kernels.amax[source](at_element(first), count);
  }
  void widen_amax_of_columns(
      std::int64_t first,
      std::int64_t count,
      float* amax) const {
    kernels.amax_of_columns[source](at_element(first), count, amax);
  }

  const CastKernels& kernels = cast_kernels();
  at::Tensor tensor;
  std::size_t source = 0;
  const std::byte* data = nullptr;
  std::int64_t element_size = 0;
};

/// A cast of a matrix in progress.
struct HostCast : SourceMatrix {
  HostCast(
      const at::Tensor& matrix,
      at::ScalarType dtype,
      RoundingSeed rounding_seed)
      : SourceMatrix(matrix),
        rows(matrix.size(0)),
        columns(matrix.size(1)),
        seed(rounding_seed),
        format(static_cast<std::size_t>(float8_format(dtype))),
        values(at::empty(matrix.sizes(), at::TensorOptions().dtype(dtype))),
        codes(static_cast<std::uint8_t*>(values.mutable_data_ptr())) {}

  void cast(std::int64_t first, std::int64_t count, float scale) const {
    const void* const from = at_element(first);
    if (seed) {
      kernels.cast_randomly[format][source](
          from, count, scale, place_of(first), codes + first);
    } else {
      kernels.cast[format][source](from, count, scale, codes + first);
    }
  }
  void cast_columns(std::int64_t first, std::int64_t count, const float* scales)
      const {
    const void* const from = at_element(first);
    if (seed) {
      kernels.cast_columns_randomly[format][source](
          from, count, scales, place_of(first), codes + first);
    } else {
      kernels.cast_columns[format][source](from, count, scales, codes + first);
    }
  }
  // Casts whole blocks, with the scales derived from them.
  void cast_blocks(std::int64_t first, std::int64_t num_blocks, float* scales)
      const {
    kernels.scales_of_blocks[format][source](
        at_element(first), num_blocks, scales);
    if (!seed) {
      kernels.cast_blocks[format][source](
          at_element(first), num_blocks, scales, codes + first);
      return;
    }
    for (std::int64_t block = 0; block < num_blocks; ++block)
      cast(first + block * kMxBlockSize, kMxBlockSize, scales[block]);
  }
  [[nodiscard]] float
  cast_finding_amax(std::int64_t first, std::int64_t count, float scale) const {
    if (seed) {
      cast(first, count, scale);
      return amax(first, count);
    }
    return kernels.cast_finding_amax[format][source](
        at_element(first), count, scale, codes + first);
  }
  [[nodiscard]] RandomPlace place_of(std::int64_t index) const {
    return {*seed, static_cast<std::uint64_t>(index)};
  }

  std::int64_t rows;
  std::int64_t columns;
  RoundingSeed seed;
  std::size_t format;
  at::Tensor values;
  std::uint8_t* codes;
};

// The larger of two, or NaN if one is NaN.
float larger_or_nan(float a, float b) { return std::isnan(a) || a > b ? a : b; }

// Returns the largest result of `find(first, count)` over all pieces.
template <class Find>
float largest_of_pieces(std::int64_t size, Find&& find) {
  const std::int64_t pieces = (size + kCastTogether - 1) / kCastTogether;
  std::vector<float> found(static_cast<std::size_t>(pieces), 0.0F);
  for_each_piece(
      size, [&](std::int64_t first, std::int64_t count, std::int64_t piece) {
        found[static_cast<std::size_t>(piece)] = find(first, count);
      });
  float largest = 0;
  for (const float each : found) largest = larger_or_nan(largest, each);
  return largest;
}

at::Tensor number(float value) { return at::full({}, value, at::kFloat); }

// Casts each row in groups of `together` values, one scale per group.
at::Tensor cast_along_rows(
    const HostCast& matrix,
    const DynamicCast& how,
    std::int64_t together) {
  const std::int64_t groups = (matrix.columns + together - 1) / together;
  at::Tensor scales =
      at::empty({matrix.rows, groups}, at::TensorOptions().dtype(at::kFloat));
  auto* const out = scales.mutable_data_ptr<float>();
  const std::int64_t grain =
      std::max<std::int64_t>(kCastTogether / matrix.columns, 1);
  for_parallel_ranges(
      matrix.rows, grain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          for (std::int64_t group = 0; group < groups; ++group) {
            const std::int64_t column = group * together;
            const std::int64_t first = row * matrix.columns + column;
            const std::int64_t count =
                std::min(together, matrix.columns - column);
            const float scale = scale_of_number(matrix.amax(first, count), how);
            out[row * groups + group] = scale;
            matrix.cast(first, count, scale);
          }
        }
      });
  return scales;
}

// Casts each row in blocks, all of them full.
at::Tensor cast_whole_blocks(const HostCast& matrix) {
  at::Tensor scales = at::empty(
      {matrix.rows, matrix.columns / kMxBlockSize},
      at::TensorOptions().dtype(at::kFloat));
  auto* const out = scales.mutable_data_ptr<float>();
  for_each_piece(
      matrix.size(), [&](std::int64_t first, std::int64_t count, std::int64_t) {
        matrix.cast_blocks(
            first, count / kMxBlockSize, out + first / kMxBlockSize);
      });
  return scales;
}

// Casts each column in groups of `together` values. Reads groups of rows
// sequentially, in pieces of columns that stay in the cache.
at::Tensor cast_along_columns(
    const HostCast& matrix,
    const DynamicCast& how,
    std::int64_t together) {
  constexpr std::int64_t kPiece = 512;
  const std::int64_t groups = (matrix.rows + together - 1) / together;
  const std::int64_t pieces = (matrix.columns + kPiece - 1) / kPiece;
  at::Tensor scales = at::zeros(
      {groups, matrix.columns}, at::TensorOptions().dtype(at::kFloat));
  auto* const out = scales.mutable_data_ptr<float>();
  for_parallel_ranges(
      groups * pieces, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          const std::int64_t first_row = i / pieces * together;
          const std::int64_t last_row =
              std::min(first_row + together, matrix.rows);
          const std::int64_t column = i % pieces * kPiece;
          const std::int64_t count = std::min(kPiece, matrix.columns - column);
          float* const own = out + i / pieces * matrix.columns + column;
          for (std::int64_t row = first_row; row < last_row; ++row) {
            matrix.widen_amax_of_columns(
                row * matrix.columns + column, count, own);
          }
          std::transform(own, own + count, own, [&](float amax) {
            return scale_of_number(amax, how);
          });
          for (std::int64_t row = first_row; row < last_row; ++row)
            matrix.cast_columns(row * matrix.columns + column, count, own);
        }
      });
  return scales;
}

/// The codes of a matrix, and the memory for their values.
struct HostDecode {
  explicit HostDecode(const Float8Matrix& matrix)
      : format(static_cast<std::size_t>(
            float8_format(matrix.values.scalar_type()))),
        columns(matrix.values.size(1)),
        scale(matrix.scale.contiguous()),
        restored(at::empty(
            matrix.values.sizes(),
            at::TensorOptions().dtype(at::kFloat))),
        codes(static_cast<const std::uint8_t*>(matrix.values.const_data_ptr())),
        scales(scale.const_data_ptr<float>()),
        out(restored.mutable_data_ptr<float>()) {}

  void decode(std::int64_t first, std::int64_t count, float by) const {
    kernels.decode[format](codes + first, count, by, out + first);
  }
  // Decodes a row in groups, one scale per group.
  void decode_row(std::int64_t row, std::int64_t groups, std::int64_t together)
      const {
    for (std::int64_t group = 0; group < groups; ++group) {
      const std::int64_t column = group * together;
      decode(
          row * columns + column,
          std::min(together, columns - column),
          scales[row * groups + group]);
    }
  }
  // Decodes a row with one scale per value.
  void decode_columns(std::int64_t row, std::int64_t row_of_scales) const {
    kernels.decode_columns[format](
        codes + row * columns,
        columns,
        scales + row_of_scales * columns,
        out + row * columns);
  }

  const CastKernels& kernels = cast_kernels();
  std::size_t format;
  std::int64_t columns;
  at::Tensor scale;
  at::Tensor restored;
  const std::uint8_t* codes;
  const float* scales;
  float* out;
};

}  // namespace

float scale_of_number(float amax, const DynamicCast& cast) {
  const Float8Format type = float8_format(cast.dtype);
  return cast.granularity == Float8Granularity::blocks
      ? scale_of_e8m0(e8m0_of_amax(amax, type))
      : scale_of_amax(amax, type, cast.power_of_2);
}

float host_amax(const at::Tensor& tensor) {
  const SourceMatrix source(tensor);
  return largest_of_pieces(
      source.size(), [&](std::int64_t first, std::int64_t count) {
        return source.amax(first, count);
      });
}

Float8Matrix host_cast(
    const at::Tensor& matrix,
    const DynamicCast& cast,
    std::int64_t dim,
    RoundingSeed seed) {
  if (cast.granularity == Float8Granularity::tensorwise) {
    const float scale = scale_of_number(host_amax(matrix), cast);
    return host_cast_with_scale(matrix, cast.dtype, scale, seed);
  }
  const HostCast host(matrix, cast.dtype, seed);
  const bool is_blocks = cast.granularity == Float8Granularity::blocks;
  if (is_blocks && dim == 1 && host.columns % kMxBlockSize == 0)
    return {host.values, cast_whole_blocks(host), dim};
  const std::int64_t together = is_blocks ? kMxBlockSize : matrix.size(dim);
  const at::Tensor scales = dim == 1 ? cast_along_rows(host, cast, together)
                                     : cast_along_columns(host, cast, together);
  return {host.values, scales, is_blocks ? std::optional(dim) : std::nullopt};
}

Float8Matrix host_cast_with_scale(
    const at::Tensor& matrix,
    at::ScalarType dtype,
    float scale,
    RoundingSeed seed) {
  const HostCast host(matrix, dtype, seed);
  for_each_piece(
      host.size(), [&](std::int64_t first, std::int64_t count, std::int64_t) {
        host.cast(first, count, scale);
      });
  return {host.values, number(scale)};
}

MeasuredMatrix host_cast_and_measure(
    const at::Tensor& matrix,
    at::ScalarType dtype,
    float scale,
    RoundingSeed seed) {
  const HostCast host(matrix, dtype, seed);
  const float amax = largest_of_pieces(
      host.size(), [&](std::int64_t first, std::int64_t count) {
        return host.cast_finding_amax(first, count, scale);
      });
  return {{host.values, number(scale)}, number(amax)};
}

at::Tensor host_dequantize(const Float8Matrix& matrix) {
  const HostDecode host(matrix);
  const std::int64_t rows = matrix.values.size(0);
  if (matrix.scale.dim() == 0) {
    for_each_piece(
        matrix.values.numel(),
        [&](std::int64_t first, std::int64_t count, std::int64_t) {
          host.decode(first, count, host.scales[0]);
        });
    return host.restored;
  }
  const bool has_scales_of_columns = matrix.block_dim
      ? *matrix.block_dim == 0
      : matrix.scale.size(1) > 1 || host.columns == 1;
  const std::int64_t together = matrix.block_dim ? kMxBlockSize : host.columns;
  const std::int64_t groups = (host.columns + together - 1) / together;
  const std::int64_t grain =
      std::max<std::int64_t>(kCastTogether / host.columns, 1);
  for_parallel_ranges(rows, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      if (has_scales_of_columns) {
        const std::int64_t row_of_scales = matrix.block_dim
            ? row / kMxBlockSize
            : (matrix.scale.size(0) > 1 ? row : 0);
        host.decode_columns(row, row_of_scales);
      } else {
        host.decode_row(row, groups, together);
      }
    }
  });
  return host.restored;
}

}  // namespace accelerate::detail
