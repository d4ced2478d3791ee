#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include <accelerate/quantize.h>

namespace accelerate::detail {

/// Codes and scales of an fp32, fp16 or bf16 tensor on the CPU. Both functions
/// throw ConfigError for values that are not finite.
QuantizedParts quantize_4bit_values(
    const at::Tensor& weight,
    QuantizationType type,
    std::int64_t block_size,
    bool double_quant);
/// Codes and scales of the rows of a matrix.
QuantizedParts quantize_int8_values(const at::Tensor& weight);

}  // namespace accelerate::detail
