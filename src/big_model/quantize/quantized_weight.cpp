#include "big_model/quantize/quantized_weight.h"

#include <algorithm>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>

#include "base/require.h"
#include "base/text/text.h"
#include "big_model/model/offload_keeper.h"
#include "big_model/quantize/block_codes.h"
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
      "[big_model] a weight must be finite to be quantised, but has infinite "
      "or NaN values; look for the step that made them");
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
  std::ranges::copy(
      blocks.codes, parts.absmax.mutable_data_ptr<std::uint8_t>());
  parts.nested_absmax = floats(static_cast<std::int64_t>(blocks.absmax.size()));
  std::ranges::copy(
      blocks.absmax, parts.nested_absmax.mutable_data_ptr<float>());
  parts.nested_code_values = floats(static_cast<std::int64_t>(codebook.size()));
  std::ranges::copy(
      codebook, parts.nested_code_values.mutable_data_ptr<float>());
  parts.nested_offset = offset.item<float>();
}

// bitsandbytes quantises int8 weights from fp16, unless they do not fit fp16.
void round_to_half(std::span<float> row) {
  if (absolute_maximum(row) > kLargestHalf) return;
  for (float& value : row) value = static_cast<float>(c10::Half(value));
}

// Codes and scales of an fp32, fp16 or bf16 tensor on the CPU. Both functions
// throw ConfigError for values that are not finite.
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
  std::ranges::copy(codebook, parts.code_values.mutable_data_ptr<float>());
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

// Codes and scales of the rows of a matrix.
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

}  // namespace

}  // namespace accelerate::detail

namespace accelerate {

namespace {

using detail::format;

// Elements that a thread dequantises at a time.
constexpr std::int64_t kDequantizedTogether = 1 << 14;

void require_quantizable(
    const at::Tensor& weight,
    const QuantizeWeightOptions& options) {
  const c10::ScalarType dtype = weight.scalar_type();
  if (dtype != at::kFloat && dtype != at::kHalf && dtype != at::kBFloat16) {
    throw ConfigError(format(
        "[big_model] a weight must have 16- or 32-bit floats to be quantised, "
        "but is {}",
        detail::torch_name_of(dtype)));
  }
  detail::require_at_least("big_model", "block_size", options.block_size, 1);
  if (options.type == QuantizationType::int8 && weight.dim() != 2) {
    throw ConfigError(format(
        "[big_model] a weight must be a matrix for int8, but has {} "
        "dimensions; use nf4 or fp4",
        weight.dim()));
  }
  if (weight.is_meta()) {
    throw ConfigError(
        "[big_model] a weight on the meta device has no values to quantise; "
        "pass the location of its weights to load_and_quantize_model()");
  }
}

// Dequantises with LibTorch's operators, for devices other than the CPU.
at::Tensor dequantize_by_operators(
    const QuantizedWeight& weight,
    const detail::QuantizedParts& parts) {
  if (weight.type() == QuantizationType::int8)
    return parts.codes.to(at::kFloat) * (parts.absmax / 127).unsqueeze(1);
  const std::int64_t count = c10::multiply_integers(weight.sizes());
  at::Tensor scales = parts.absmax;
  if (weight.is_double_quantized()) {
    const at::Tensor blocks =
        parts.nested_absmax.repeat_interleave(detail::kNestedBlockSize);
    scales = parts.nested_code_values.index_select(0, scales.to(at::kInt)) *
            blocks.slice(0, 0, scales.numel()) +
        parts.nested_offset;
  }
  const at::Tensor bytes = parts.codes.view({-1});
  const at::Tensor codes = at::stack(
      {at::bitwise_right_shift(bytes, 4), at::bitwise_and(bytes, 15)}, 1);
  const at::Tensor values =
      parts.code_values.index_select(0, codes.view({-1}).to(at::kInt))
          .slice(0, 0, count);
  const at::Tensor factors =
      scales.repeat_interleave(weight.block_size()).slice(0, 0, count);
  return (values * factors).view(weight.sizes());
}

}  // namespace

QuantizedWeight::QuantizedWeight(
    const at::Tensor& weight,
    const QuantizeWeightOptions& options)
    : type_(options.type),
      sizes_(weight.sizes().vec()),
      dtype_(weight.scalar_type()) {
  require_quantizable(weight, options);
  if (type_ == QuantizationType::int8) {
    parts_ = detail::quantize_int8_values(weight);
  } else {
    block_size_ = options.block_size;
    parts_ = detail::quantize_4bit_values(
        weight, type_, block_size_, options.double_quant);
  }
  if (!weight.is_cpu()) *this = to(weight.device());
}

std::int64_t QuantizedWeight::num_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors())
    bytes += static_cast<std::int64_t>(tensor.nbytes());
  return bytes;
}

at::Tensor QuantizedWeight::dequantize(
    std::optional<c10::ScalarType> dtype) const {
  const at::NoGradGuard no_grad;
  const detail::OffloadedUse use({parts_.codes, parts_.absmax});
  const c10::ScalarType result_dtype = dtype.value_or(dtype_);
  if (!device().is_cpu())
    return dequantize_by_operators(*this, parts_).to(result_dtype);
  const bool is_direct =
      result_dtype == at::kHalf || result_dtype == at::kBFloat16;
  at::Tensor result = at::empty(
      sizes_, at::TensorOptions().dtype(is_direct ? result_dtype : at::kFloat));
  const std::int64_t count = result.numel();
  if (count == 0) return result.to(result_dtype);
  const std::int64_t columns = sizes_.back();
  detail::for_parallel_ranges(
      count / columns,
      std::max<std::int64_t>(kDequantizedTogether / columns, 1),
      [&](std::int64_t begin, std::int64_t end) {
        if (!is_direct) {
          detail::dequantize_rows(
              *this,
              begin,
              end,
              result.mutable_data_ptr<float>() + begin * columns);
          return;
        }
        std::vector<float> row(static_cast<std::size_t>(columns));
        for (std::int64_t r = begin; r < end; ++r) {
          detail::dequantize_rows(*this, r, r + 1, row.data());
          detail::copy_from_floats(row, result, r * columns);
        }
      });
  return result.to(result_dtype);
}

QuantizedWeight QuantizedWeight::to(c10::Device device) const {
  const detail::OffloadedUse use({parts_.codes, parts_.absmax});
  QuantizedWeight moved = *this;
  for (at::Tensor* const tensor :
       {&moved.parts_.codes,
        &moved.parts_.absmax,
        &moved.parts_.code_values,
        &moved.parts_.nested_absmax,
        &moved.parts_.nested_code_values}) {
    if (tensor->defined()) *tensor = tensor->to(device);
  }
  return moved;
}

namespace detail {

const FourBitCodebook& codebook_of(QuantizationType type) {
  return type == QuantizationType::nf4 ? nf4_codebook() : fp4_codebook();
}

const char* name_of(QuantizationType type) {
  switch (type) {
    case QuantizationType::int8:
      return "int8";
    case QuantizationType::nf4:
      return "nf4";
    case QuantizationType::fp4:
      return "fp4";
  }
  return "";
}

FourBitRows four_bit_rows(const QuantizedWeight& weight) {
  const QuantizedParts& parts = weight.parts();
  FourBitRows rows;
  rows.codes = parts.codes.const_data_ptr<std::uint8_t>();
  rows.code_values = parts.code_values.const_data_ptr<float>();
  rows.block_size = weight.block_size();
  rows.columns = weight.sizes().back();
  if (weight.is_double_quantized()) {
    rows.scales.codes = parts.absmax.const_data_ptr<std::uint8_t>();
    rows.scales.code_values = parts.nested_code_values.const_data_ptr<float>();
    rows.scales.nested_absmax = parts.nested_absmax.const_data_ptr<float>();
    rows.scales.nested_size = kNestedBlockSize;
    rows.scales.offset = static_cast<float>(parts.nested_offset);
  } else {
    rows.scales.absmax = parts.absmax.const_data_ptr<float>();
  }
  return rows;
}

Int8Rows int8_rows(const QuantizedWeight& weight) {
  return {
      weight.parts().codes.const_data_ptr<std::int8_t>(),
      weight.parts().absmax.const_data_ptr<float>(),
      weight.sizes().back()};
}

void dequantize_rows(
    const QuantizedWeight& weight,
    std::int64_t begin,
    std::int64_t end,
    float* out) {
  if (weight.type() != QuantizationType::int8) {
    const FourBitRows rows = four_bit_rows(weight);
    row_kernels().dequantize_4bit(
        rows, begin * rows.columns, (end - begin) * rows.columns, out);
    return;
  }
  const Int8Rows rows = int8_rows(weight);
  for (std::int64_t row = begin; row < end; ++row) {
    const float factor = rows.absmax[row] / 127;
    const std::int8_t* const values = rows.values + row * rows.columns;
    for (std::int64_t k = 0; k < rows.columns; ++k)
      *out++ = static_cast<float>(values[k]) * factor;
  }
}

std::string torch_name_of(c10::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return "torch.float32";
    case at::kHalf:
      return "torch.float16";
    case at::kBFloat16:
      return "torch.bfloat16";
    case at::kDouble:
      return "torch.float64";
    default:
      return c10::toString(dtype);
  }
}

}  // namespace detail

}  // namespace accelerate
