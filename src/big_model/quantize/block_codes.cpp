#include "big_model/quantize/block_codes.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace accelerate::detail {

namespace {

constexpr float kLeastScale = 1e-38f;
constexpr float kLeastRowScale = 1e-36f;
constexpr float kRoundsToIntegers = 12582912;  // 1.5 * 2^23

}  // namespace

float absolute_maximum(std::span<const float> values) {
  // As integers, absolute values keep their order, with infinity and NaN above
  // all others.
  std::uint32_t largest = 0;
  for (const float value : values) {
    largest =
        std::max(largest, std::bit_cast<std::uint32_t>(value) & 0x7fffffffu);
  }
  const float result = std::bit_cast<float>(largest);
  return std::isfinite(result) ? result
                               : std::numeric_limits<float>::infinity();
}

float quantize_4bit_block(
    std::span<const float> values,
    bool is_short,
    const FourBitSearch& search,
    std::uint8_t* codes) {
  float absmax = absolute_maximum(values);
  const float divisor = std::max(absmax, kLeastScale);
  if (is_short) absmax = divisor;
  row_kernels().find_codes(
      values.data(),
      static_cast<std::int64_t>(values.size()),
      1 / divisor,
      search.bounds.data(),
      codes);
  for (std::size_t i = 0; i < values.size(); ++i)
    codes[i] = search.codes[codes[i]];
  return absmax;
}

ByteBlocks quantize_byte_blocks(
    std::span<const float> values,
    std::int64_t block_size,
    const ByteCodebook& codebook) {
  std::vector<float> bounds;
  for (std::size_t i = 0; i + 1 < codebook.size(); ++i)
    bounds.push_back((codebook[i] + codebook[i + 1]) / 2);
  ByteBlocks blocks;
  blocks.codes.resize(values.size());
  const auto size = static_cast<std::size_t>(block_size);
  for (std::size_t begin = 0; begin < values.size(); begin += size) {
    const auto block =
        values.subspan(begin, std::min(size, values.size() - begin));
    const float absmax = absolute_maximum(block);
    blocks.absmax.push_back(absmax);
    if (absmax == 0) continue;
    for (std::size_t i = 0; i < block.size(); ++i) {
      const auto bound =
          std::lower_bound(bounds.begin(), bounds.end(), block[i] / absmax);
      blocks.codes[begin + i] =
          static_cast<std::uint8_t>(bound - bounds.begin());
    }
  }
  return blocks;
}

float quantize_int8_row(std::span<const float> values, std::int8_t* codes) {
  const float absmax = absolute_maximum(values);
  // Below that, the factor would be infinite.
  const float factor = absmax > kLeastRowScale ? 127 / absmax : 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    // Adding and subtracting rounds to an integer, halves to even.
    const float rounded =
        (values[i] * factor + kRoundsToIntegers) - kRoundsToIntegers;
    codes[i] = static_cast<std::int8_t>(rounded);
  }
  return absmax;
}

}  // namespace accelerate::detail
