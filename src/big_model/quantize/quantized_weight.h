#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <accelerate/quantize.h>

#include "big_model/quantize/codebooks.h"
#include "big_model/quantize/kernels/row_kernels.h"

namespace accelerate::detail {

/// Scales per nested scale, as in bitsandbytes.
inline constexpr std::int64_t kNestedBlockSize = 256;

const FourBitCodebook& codebook_of(QuantizationType type);
/// "int8", "nf4", "fp4".
const char* name_of(QuantizationType type);

/// Copies elements [begin, begin + out.size()) of a contiguous fp32, fp16 or
/// bf16 tensor on the CPU.
void copy_to_floats(
    const at::Tensor& tensor,
    std::int64_t begin,
    std::span<float> out);
void copy_from_floats(
    std::span<const float> values,
    const at::Tensor& tensor,
    std::int64_t begin);

/// The kernels' views of a matrix on the CPU.
FourBitRows four_bit_rows(const QuantizedWeight& weight);
Int8Rows int8_rows(const QuantizedWeight& weight);

/// Dequantises rows [begin, end) of a matrix on the CPU into `out`, fp32, on
/// this thread.
void dequantize_rows(
    const QuantizedWeight& weight,
    std::int64_t begin,
    std::int64_t end,
    float* out);

/// "torch.float64", for messages.
std::string torch_name_of(c10::ScalarType dtype);

}  // namespace accelerate::detail
