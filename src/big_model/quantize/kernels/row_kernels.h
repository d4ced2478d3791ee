#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace accelerate::detail {

/// The scales of a weight quantised in blocks: fp32, or quantised themselves
/// (double quantisation, section 3 of QLoRA: Dettmers et al. 2023).
struct BlockScales {
  /// One per block; null if they are nested.
  const float* absmax = nullptr;
  /// Nested: block i has code_values[codes[i]] * nested_absmax[i / nested_size]
  /// + offset.
  const std::uint8_t* codes = nullptr;
  const float* code_values = nullptr;
  const float* nested_absmax = nullptr;
  std::int64_t nested_size = 256;
  float offset = 0;

  [[nodiscard]] float operator[](std::int64_t block) const {
    if (absmax != nullptr) return absmax[block];
    return code_values[codes[block]] * nested_absmax[block / nested_size] +
        offset;
  }
};

/// A matrix in 4-bit codes, two per byte, the first in the high bits. Blocks
/// are consecutive elements, and may span rows.
struct FourBitRows {
  const std::uint8_t* codes = nullptr;
  const float* code_values = nullptr;  ///< 16
  BlockScales scales = {};
  std::int64_t block_size = 0;
  std::int64_t columns = 0;
};

/// A matrix in int8, with one factor per row.
struct Int8Rows {
  const std::int8_t* values = nullptr;
  /// The largest absolute value of each row, represented by 127.
  const float* absmax = nullptr;
  std::int64_t columns = 0;
};

inline constexpr std::int64_t kMostInputs = 8;

/// Columns that are decoded together.
inline constexpr std::int64_t kGroupColumns = 32;

/// Inputs of products in the order in which kernels read them. Initially zero,
/// and aligned to cache lines: a load that crosses two takes twice as long.
class PackedInputs {
 public:
  explicit PackedInputs(std::int64_t num_floats)
      : lines_(static_cast<std::size_t>(
            (num_floats + kLineFloats - 1) / kLineFloats)) {}

  [[nodiscard]] float* data() {
    return reinterpret_cast<float*>(lines_.data());
  }
  [[nodiscard]] const float* data() const {
    return reinterpret_cast<const float*>(lines_.data());
  }

 private:
  static constexpr std::int64_t kLineFloats = 16;
  struct alignas(kLineFloats * sizeof(float)) Line {
    float values[kLineFloats];
  };
  std::vector<Line> lines_;
};

/// Stores column g * kGroupColumns + c of input i at (g * num_inputs + i) *
/// kGroupColumns + c, so that rows and inputs are read sequentially. Input rows
/// that are a power of two apart would evict each other from the L1 cache.
PackedInputs
packed_inputs(const float* x, std::int64_t num_inputs, std::int64_t columns);

/// A product of inputs with some rows of a matrix:
/// out[i * out_stride + row] = sum over k of input i, column k * matrix[row,
/// k].
struct RowProduct {
  /// packed_inputs(); for multiply_4bit(), inputs_for_4bit() of the same set.
  const float* x = nullptr;
  /// Number of inputs, at most kMostInputs.
  std::int64_t num_inputs = 0;
  std::int64_t begin = 0;  ///< the first row
  std::int64_t end = 0;
  float* out = nullptr;
  std::int64_t out_stride = 0;
};

/// Products and conversions of quantised rows, for one thread, written for one
/// instruction set. A row's result depends only on the row and the inputs, so
/// it is bitwise the same however rows are split over threads.
struct RowKernels {
  std::string_view name;
  /// Inputs in the order in which multiply_4bit() reads them for `matrix`.
  PackedInputs (*inputs_for_4bit)(
      const FourBitRows& matrix,
      const float* x,
      std::int64_t num_inputs);
  void (*multiply_4bit)(const FourBitRows& matrix, const RowProduct& product);
  void (*multiply_int8)(const Int8Rows& matrix, const RowProduct& product);
  /// Elements [begin, begin + count) of the matrix in row-major order.
  void (*dequantize_4bit)(
      const FourBitRows& matrix,
      std::int64_t begin,
      std::int64_t count,
      float* out);
  /// Codes by position among 15 ascending bounds: the number of bounds below
  /// value * factor.
  void (*find_codes)(
      const float* values,
      std::int64_t count,
      float factor,
      const float* bounds,
      std::uint8_t* codes);
  /// out[i * rows + row] = sum over k of a[i, k] * b[row, k], in 32 bits, for
  /// values from -127 to 127.
  void (*multiply_int8_int8)(
      const std::int8_t* a,
      std::int64_t num_inputs,
      const std::int8_t* b,
      std::int64_t rows,
      std::int64_t columns,
      std::int32_t* out);
};

/// The fastest kernels that this processor supports.
const RowKernels& row_kernels();

/// All kernels that this processor supports, fastest first.
std::span<const RowKernels* const> supported_row_kernels();

}  // namespace accelerate::detail
