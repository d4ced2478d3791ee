#include "big_model/quantize/codebooks.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>

namespace accelerate::detail {

namespace {

constexpr std::size_t kByteCodes = 256;

// Values from `first` to `last` in float32, bit for bit as PyTorch's linspace,
// from which bitsandbytes builds its maps: each half is counted from its end.
std::vector<float> evenly_spaced(float first, float last, int count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  const float step = (last - first) / static_cast<float>(count - 1);
  for (int i = 0; i < count; ++i) {
    values[static_cast<std::size_t>(i)] = i < count / 2
        ? std::fma(step, static_cast<float>(i), first)
        : std::fma(-step, static_cast<float>(count - i - 1), last);
  }
  return values;
}

ByteCodebook filled_with_zeros(ByteCodebook values) {
  values.resize(std::max(values.size(), kByteCodes));
  std::ranges::sort(values);
  return values;
}

}  // namespace

const FourBitCodebook& nf4_codebook() {
  static constexpr FourBitCodebook kValues{
      -1.0f,
      -0.6961928009986877f,
      -0.5250730514526367f,
      -0.39491748809814453f,
      -0.28444138169288635f,
      -0.18477343022823334f,
      -0.09105003625154495f,
      0.0f,
      0.07958029955625534f,
      0.16093020141124725f,
      0.24611230194568634f,
      0.33791524171829224f,
      0.44070982933044434f,
      0.5626170039176941f,
      0.7229568362236023f,
      1.0f};
  return kValues;
}

const FourBitCodebook& fp4_codebook() {
  static const FourBitCodebook values = [] {
    FourBitCodebook all{};
    const std::array<float, 8> twelfths{0, 0.0625f, 8, 12, 4, 6, 2, 3};
    for (std::size_t code = 0; code < twelfths.size(); ++code) {
      all[code] = twelfths[code] / 12;
      all[code + 8] = 0 - all[code];
    }
    return all;
  }();
  return values;
}

FourBitSearch search_of(const FourBitCodebook& codebook) {
  FourBitSearch search;
  std::iota(search.codes.begin(), search.codes.end(), std::uint8_t{0});
  std::ranges::stable_sort(search.codes, [&](std::uint8_t a, std::uint8_t b) {
    return codebook[a] < codebook[b];
  });
  for (std::size_t i = 0; i < search.bounds.size(); ++i) {
    search.bounds[i] =
        (codebook[search.codes[i]] + codebook[search.codes[i + 1]]) / 2;
  }
  return search;
}

ByteCodebook create_dynamic_map(const DynamicMapOptions& options) {
  const int value_bits = options.total_bits - 1;
  ByteCodebook values{0.0f, 1.0f};
  const auto add = [&](int num_bounds, int exponent) {
    const std::vector<float> bounds = evenly_spaced(0.1f, 1.0f, num_bounds);
    const auto factor = static_cast<float>(std::pow(10.0, exponent));
    for (std::size_t i = 0; i + 1 < bounds.size(); ++i) {
      const float middle = factor * ((bounds[i] + bounds[i + 1]) / 2);
      values.push_back(middle);
      if (options.is_signed) values.push_back(-middle);
    }
  };
  const int spare_bits = value_bits - options.max_exponent_bits;
  for (int i = 0; i < options.max_exponent_bits; ++i) {
    const int bits = i + spare_bits + (options.is_signed ? 0 : 1);
    add(bits < 0 ? 1 : (1 << bits) + 1, i - (options.max_exponent_bits - 1));
  }
  if (spare_bits > 0) add(1 << spare_bits, 0);
  return filled_with_zeros(std::move(values));
}

}  // namespace accelerate::detail
