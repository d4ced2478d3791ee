#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "big_model/quantize/block_codes.h"
#include "big_model/quantize/quantize_values.h"
#include "big_model/quantize/quantized_weight.h"
#include "gate/parallel_ranges.h"

namespace accelerate::detail {

namespace {

// Elements that a thread quantises at a time: enough to be worth it, and few
// enough for its cache.
constexpr std::int64_t kQuantizedTogether = 1 << 16;
constexpr float kLargestHalf = 65504;

at::Tensor contiguous_on_cpu(const at::Tensor& tensor) {
  return tensor.detach().to(at::kCPU).contiguous();
}

[[noreturn]] void throw_not_finite() {
  throw ConfigError(
      "[big_model] a weight with values that are infinite or not a number "
      "cannot be quantised; look for the step that made them");
}

at::Tensor floats(std::int64_t count) {
  return at::empty({count}, at::TensorOptions().dtype(at::kFloat));
}

// The 4-bit codes of blocks [first, last), where `first` is even, so that they
// begin at a byte boundary.
void quantize_4bit_blocks(
    const at::Tensor& values,
    std::int64_t block_size,
    std::pair<std::int64_t, std::int64_t> blocks,
    const FourBitSearch& search,
    QuantizedParts& parts) {
  const std::int64_t begin = blocks.first * block_size;
  const std::int64_t end = std::min(blocks.second * block_size, values.numel());
  std::vector<float> block(static_cast<std::size_t>(end - begin));
  copy_to_floats(values, begin, block);
  // The very last byte may be half used; the other half stands for zero.
  std::vector<std::uint8_t> codes(block.size() + 1);
  auto* const absmax = parts.absmax.mutable_data_ptr<float>();
  for (std::int64_t b = blocks.first; b < blocks.second; ++b) {
    const std::int64_t offset = b * block_size - begin;
    const std::int64_t size = std::min(block_size, end - begin - offset);
    absmax[b] = quantize_4bit_block(
        std::span(block).subspan(
            static_cast<std::size_t>(offset), static_cast<std::size_t>(size)),
        size < block_size,
        search,
        codes.data() + offset);
  }
  if (block.size() % 2 == 1) {
    const float zero = 0;
    quantize_4bit_block({&zero, 1}, true, search, &codes.back());
  }
  auto* const bytes = parts.codes.mutable_data_ptr<std::uint8_t>() + begin / 2;
  for (std::size_t i = 0; i < block.size(); i += 2)
    bytes[i / 2] = static_cast<std::uint8_t>(codes[i] << 4 | codes[i + 1]);
}

void nest_scales(QuantizedParts& parts) {
  const at::Tensor offset = parts.absmax.mean();
  const at::Tensor centered = parts.absmax - offset;
  const ByteCodebook codebook = create_dynamic_map();
  const ByteBlocks blocks = quantize_byte_blocks(
      {centered.const_data_ptr<float>(),
       static_cast<std::size_t>(centered.numel())},
      kNestedBlockSize,
      codebook);
  parts.absmax =
      at::empty({centered.numel()}, at::TensorOptions().dtype(at::kByte));
  std::copy(
      blocks.codes.begin(),
      blocks.codes.end(),
      parts.absmax.mutable_data_ptr<std::uint8_t>());
  parts.nested_absmax = floats(static_cast<std::int64_t>(blocks.absmax.size()));
  std::copy(
      blocks.absmax.begin(),
      blocks.absmax.end(),
      parts.nested_absmax.mutable_data_ptr<float>());
  parts.nested_code_values = floats(static_cast<std::int64_t>(codebook.size()));
  std::copy(
      codebook.begin(),
      codebook.end(),
      parts.nested_code_values.mutable_data_ptr<float>());
  parts.nested_offset = offset.item<float>();
}

// bitsandbytes quantises int8 weights from fp16, unless they do not fit fp16.
void round_to_half(std::span<float> row) {
  if (absolute_maximum(row) > kLargestHalf) return;
  for (float& value : row) value = static_cast<float>(c10::Half(value));
}

}  // namespace

QuantizedParts quantize_4bit_values(
    const at::Tensor& weight,
    QuantizationType type,
    std::int64_t block_size,
    bool double_quant) {
  const at::NoGradGuard no_grad;
  const at::Tensor values = contiguous_on_cpu(weight);
  const std::int64_t num_blocks =
      (values.numel() + block_size - 1) / block_size;
  QuantizedParts parts;
  parts.codes = at::empty(
      {(values.numel() + 1) / 2, 1}, at::TensorOptions().dtype(at::kByte));
  parts.absmax = floats(num_blocks);
  parts.code_values = floats(16);
  const FourBitCodebook& codebook = codebook_of(type);
  std::copy(
      codebook.begin(),
      codebook.end(),
      parts.code_values.mutable_data_ptr<float>());
  const FourBitSearch search = search_of(codebook);
  // An even number of blocks takes whole bytes, whatever the block size.
  const std::int64_t together =
      std::max<std::int64_t>(kQuantizedTogether / block_size / 2, 1) * 2;
  for_parallel_ranges(
      (num_blocks + together - 1) / together,
      1,
      [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          quantize_4bit_blocks(
              values,
              block_size,
              {i * together, std::min((i + 1) * together, num_blocks)},
              search,
              parts);
        }
      });
  if (!at::isfinite(parts.absmax).all().item<bool>()) throw_not_finite();
  if (double_quant && num_blocks > 0) nest_scales(parts);
  return parts;
}

QuantizedParts quantize_int8_values(const at::Tensor& weight) {
  const at::NoGradGuard no_grad;
  const at::Tensor values = contiguous_on_cpu(weight);
  const std::int64_t rows = values.size(0);
  const std::int64_t columns = values.size(1);
  QuantizedParts parts;
  parts.codes =
      at::empty({rows, columns}, at::TensorOptions().dtype(at::kChar));
  parts.absmax = floats(rows);
  auto* const codes = parts.codes.mutable_data_ptr<std::int8_t>();
  auto* const absmax = parts.absmax.mutable_data_ptr<float>();
  const std::int64_t grain =
      kQuantizedTogether / std::max<std::int64_t>(columns, 1) + 1;
  for_parallel_ranges(rows, grain, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> row(static_cast<std::size_t>(columns));
    for (std::int64_t r = begin; r < end; ++r) {
      copy_to_floats(values, r * columns, row);
      round_to_half(row);
      absmax[r] = quantize_int8_row(row, codes + r * columns);
    }
  });
  if (!at::isfinite(parts.absmax).all().item<bool>()) throw_not_finite();
  return parts;
}

}  // namespace accelerate::detail
