#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace accelerate::detail {

using FourBitCodebook = std::array<float, 16>;

/// Values of the 4-bit NormalFloat: quantiles of a normal distribution, with an
/// exact zero (QLoRA, Dettmers et al. 2023, appendix E). Ascending.
const FourBitCodebook& nf4_codebook();

/// Values of the 4-bit float of bitsandbytes: a sign, two bits of exponent, one
/// of fraction, divided by the largest. Not ascending; codes 0 and 8 are zero.
const FourBitCodebook& fp4_codebook();

/// How to find the code of a value in a 4-bit codebook.
struct FourBitSearch {
  /// Midpoints between neighbouring values, ascending.
  std::array<float, 15> bounds{};
  /// The code of a value, by the number of bounds below it.
  std::array<std::uint8_t, 16> codes{};
};

/// Ties go to the smaller value. Of two equal values, zero itself gets the
/// smaller code.
FourBitSearch search_of(const FourBitCodebook& codebook);

/// 256 ascending values of an 8-bit data type; types with fewer bits are padded
/// with zeros.
using ByteCodebook = std::vector<float>;

/// Dynamic tree quantisation ("8-bit Optimizers via Block-wise Quantization",
/// Dettmers et al. 2022): the leading zero bits are a decimal exponent, the
/// rest a linear fraction. The defaults, signed with 7 exponent bits, quantise
/// the scales in double quantisation.
struct DynamicMapOptions {
  bool is_signed = true;
  int max_exponent_bits = 7;
  int total_bits = 8;
};
ByteCodebook create_dynamic_map(const DynamicMapOptions& options = {});

}  // namespace accelerate::detail
