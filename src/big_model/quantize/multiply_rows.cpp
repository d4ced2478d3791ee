#include <algorithm>
#include <vector>

#include <ATen/Functions.h>

#include "big_model/quantize/quantized_product.h"
#include "big_model/quantize/quantized_weight.h"
#include "gate/parallel_ranges.h"

namespace accelerate::detail {

namespace {

// With more input rows, dequantising once costs less than decoding for every
// eight of them; 4-bit codes cost more to decode.
constexpr std::int64_t kMostKernelInputs = 32;
constexpr std::int64_t kMostKernelInputs4Bit = 24;
// Elements of a dequantised part. Parts that fit into a cache are faster on an
// idle machine, but slower on a busy one, where threads wait for each other at
// each part, and for inputs as large as a part, which each product rearranges.
constexpr std::int64_t kPartElements = 1 << 24;
constexpr std::int64_t kLeastPartRows = 64;
// Multiplications that are worth a thread.
constexpr std::int64_t kThreadWork = 1 << 15;
constexpr std::int64_t kRowBlock = 16;

at::Tensor new_floats(std::int64_t rows, std::int64_t columns) {
  return at::empty({rows, columns}, at::TensorOptions().dtype(at::kFloat));
}

at::Tensor new_zeros(std::int64_t rows, std::int64_t columns) {
  return at::zeros({rows, columns}, at::TensorOptions().dtype(at::kFloat));
}

at::Tensor multiply_by_kernels(
    const at::Tensor& input,
    const QuantizedWeight& weight) {
  const std::int64_t num_inputs = input.size(0);
  const std::int64_t columns = input.size(1);
  const std::int64_t rows = weight.sizes().front();
  const at::Tensor result = new_floats(num_inputs, rows);
  const bool is_int8 = weight.type() == QuantizationType::int8;
  const Int8Rows int8 = is_int8 ? int8_rows(weight) : Int8Rows{};
  const FourBitRows four_bit = is_int8 ? FourBitRows{} : four_bit_rows(weight);
  const RowKernels& kernels = row_kernels();
  std::vector<PackedInputs> packed;
  for (std::int64_t i = 0; i < num_inputs; i += kMostInputs) {
    const float* const x = input.const_data_ptr<float>() + i * columns;
    const std::int64_t count = std::min(kMostInputs, num_inputs - i);
    packed.push_back(
        is_int8 ? packed_inputs(x, count, columns)
                : kernels.inputs_for_4bit(four_bit, x, count));
  }
  const auto multiply = [&](std::int64_t begin, std::int64_t end) {
    for (std::size_t p = 0; p < packed.size(); ++p) {
      const auto first = static_cast<std::int64_t>(p) * kMostInputs;
      RowProduct product;
      product.x = packed[p].data();
      product.num_inputs = std::min(kMostInputs, num_inputs - first);
      product.begin = begin;
      product.end = end;
      product.out = result.mutable_data_ptr<float>() + first * rows;
      product.out_stride = rows;
      if (is_int8) {
        kernels.multiply_int8(int8, product);
      } else {
        kernels.multiply_4bit(four_bit, product);
      }
    }
  };
  const std::int64_t grain =
      std::max<std::int64_t>(kThreadWork / (columns * num_inputs), 1);
  for_parallel_ranges(rows, grain, [&](std::int64_t begin, std::int64_t end) {
    // Several groups of eight inputs share rows while those are in the cache.
    const std::int64_t step = packed.size() > 1 ? kRowBlock : end - begin;
    for (std::int64_t row = begin; row < end; row += step)
      multiply(row, std::min(row + step, end));
  });
  return result;
}

/// Calls function(first row, dequantised rows) for parts of a matrix.
template <class Function>
void for_parts(const QuantizedWeight& weight, Function&& function) {
  const std::int64_t rows = weight.sizes().front();
  const std::int64_t columns = weight.sizes().back();
  const std::int64_t in_part =
      std::min(rows, std::max(kPartElements / columns, kLeastPartRows));
  const at::Tensor buffer = new_floats(in_part, columns);
  auto* const values = buffer.mutable_data_ptr<float>();
  const std::int64_t grain = std::max<std::int64_t>(kThreadWork / columns, 1);
  for (std::int64_t first = 0; first < rows; first += in_part) {
    const std::int64_t count = std::min(in_part, rows - first);
    for_parallel_ranges(
        count, grain, [&](std::int64_t begin, std::int64_t end) {
          dequantize_rows(
              weight, first + begin, first + end, values + begin * columns);
        });
    function(first, buffer.narrow(0, 0, count));
  }
}

}  // namespace

at::Tensor multiply_by_rows(
    const at::Tensor& input,
    const QuantizedWeight& weight) {
  const std::int64_t rows = weight.sizes().front();
  if (input.numel() == 0 || rows == 0) return new_zeros(input.size(0), rows);
  const bool is_int8 = weight.type() == QuantizationType::int8;
  if (input.size(0) <= (is_int8 ? kMostKernelInputs : kMostKernelInputs4Bit))
    return multiply_by_kernels(input, weight);
  const at::Tensor result = new_floats(input.size(0), rows);
  for_parts(weight, [&](std::int64_t first, const at::Tensor& part) {
    at::Tensor columns = result.narrow(1, first, part.size(0));
    at::mm_out(columns, input, part.t());
  });
  return result;
}

at::Tensor multiply_by_columns(
    const at::Tensor& input,
    const QuantizedWeight& weight) {
  at::Tensor result = new_zeros(input.size(0), weight.sizes().back());
  if (input.numel() == 0 || result.numel() == 0) return result;
  for_parts(weight, [&](std::int64_t first, const at::Tensor& part) {
    result.addmm_(input.narrow(1, first, part.size(0)), part);
  });
  return result;
}

}  // namespace accelerate::detail
