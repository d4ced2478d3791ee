#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "big_model/quantize/codebooks.h"
#include "big_model/quantize/kernels/row_kernels.h"

namespace accelerate::detail {

/// The largest absolute value; infinity if a value is not finite, 0 if there
/// are none.
float absolute_maximum(std::span<const float> values);

/// Quantises one block to 4-bit codes. `codes` receives one code per byte.
/// Returns its scale: the absolute maximum, at least 1e-38 in a short last
/// block.
float quantize_4bit_block(
    std::span<const float> values,
    bool is_short,
    const FourBitSearch& search,
    std::uint8_t* codes);

/// Blocks quantised with an ascending codebook of 256 values. A block of zeros
/// gets code 0 and scale 0.
struct ByteBlocks {
  std::vector<std::uint8_t> codes;
  std::vector<float> absmax;
};
ByteBlocks quantize_byte_blocks(
    std::span<const float> values,
    std::int64_t block_size,
    const ByteCodebook& codebook);

/// Quantises one row to int8 from -127 to 127, rounding halves to even. Returns
/// its absolute maximum.
float quantize_int8_row(std::span<const float> values, std::int8_t* codes);

}  // namespace accelerate::detail
