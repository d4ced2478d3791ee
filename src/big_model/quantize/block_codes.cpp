#include "big_model/quantize/block_codes.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

namespace accelerate::detail {

namespace {

constexpr float kLeastScale = 1e-38f;
constexpr float kLeastRowScale = 1e-36f;
constexpr float kRoundsToIntegers = 12582912;  // 1.5 * 2^23

// bitsandbytes looks codes up in a table of 65536 values from -1 to 1, to which
// it rounds first.
std::uint8_t nearest_code(float value, const ByteCodebook& codebook) {
  constexpr double kPlacesPerUnit = 32767.5;
  const float place =
      std::nearbyint((value + 1) * static_cast<float>(kPlacesPerUnit));
  const double rounded = static_cast<double>(place) / kPlacesPerUnit - 1;
  const auto right = std::upper_bound(
      codebook.begin(), codebook.end() - 1, rounded, std::less<double>());
  const auto left = right == codebook.begin() ? right : right - 1;
  const bool is_right = *right - rounded < rounded - *left;
  return static_cast<std::uint8_t>(
      (is_right ? right : left) - codebook.begin());
}

}  // namespace

float absolute_maximum(std::span<const float> values) {
  // As integers, absolute values sort the same way, with infinity and NaN above
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
      blocks.codes[begin + i] = nearest_code(block[i] / absmax, codebook);
    }
  }
  return blocks;
}

float quantize_int8_row(std::span<const float> values, std::int8_t* codes) {
  const float absmax = absolute_maximum(values);
  // Below this, the factor would be infinite.
  const float factor = absmax > kLeastRowScale ? 127 / absmax : 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    // Adding and subtracting rounds to an integer, with halves to even.
    const float rounded =
        (values[i] * factor + kRoundsToIntegers) - kRoundsToIntegers;
    codes[i] = static_cast<std::int8_t>(rounded);
  }
  return absmax;
}

}  // namespace accelerate::detail
