#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "precision/fp8/kernels/cast_kernels.h"

namespace accelerate::detail {

namespace cast_kernels_test {

constexpr Float8Format kFormats[] = {
    Float8Format::e4m3fn,
    Float8Format::e5m2,
    Float8Format::e4m3fnuz,
    Float8Format::e5m2fnuz};

bool is_uz(Float8Format format) {
  return format == Float8Format::e4m3fnuz || format == Float8Format::e5m2fnuz;
}

// The value of a code by the definition of the format; NaN for infinities,
// which saturating casts never produce.
double value_of(Float8Format format, std::uint8_t code) {
  const bool is_e4m3 =
      format == Float8Format::e4m3fn || format == Float8Format::e4m3fnuz;
  const int mantissa_bits = is_e4m3 ? 3 : 2;
  const int bias = (is_e4m3 ? 7 : 15) + (is_uz(format) ? 1 : 0);
  const int exponent = (code & 0x7f) >> mantissa_bits;
  const int mantissa = code & ((1 << mantissa_bits) - 1);
  const double fraction = std::ldexp(mantissa, -mantissa_bits);
  const double magnitude = exponent == 0
      ? std::ldexp(fraction, 1 - bias)
      : std::ldexp(1 + fraction, exponent - bias);
  const bool is_nan =
      is_uz(format) ? code == 0x80 : magnitude > largest_value(format);
  if (is_nan) return std::numeric_limits<double>::quiet_NaN();
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

// The code of the nearest value; ties go to the even last bit.
std::uint8_t nearest(Float8Format format, float value) {
  if (std::isnan(value))
    return is_uz(format) ? 0x80 : std::signbit(value) ? 0xff : 0x7f;
  const double magnitude =
      std::min<double>(std::fabs(value), largest_value(format));
  std::uint8_t best = 0;
  for (int code = 1; code < 0x80; ++code) {
    const double candidate = value_of(format, static_cast<std::uint8_t>(code));
    if (std::isnan(candidate)) continue;
    const double distance = std::fabs(candidate - magnitude);
    const double least = std::fabs(value_of(format, best) - magnitude);
    if (distance < least || (distance == least && code % 2 == 0))
      best = static_cast<std::uint8_t>(code);
  }
  if (std::signbit(value) && !(is_uz(format) && best == 0)) best |= 0x80;
  return best;
}

// Values around all codes and all midpoints, and special values.
std::vector<float> interesting_values() {
  std::vector<float> values{
      0.0F,
      -0.0F,
      1e-45F,
      1e-38F,
      3e38F,
      std::numeric_limits<float>::infinity(),
      -std::numeric_limits<float>::infinity(),
      std::numeric_limits<float>::quiet_NaN(),
      -std::numeric_limits<float>::quiet_NaN()};
  for (const Float8Format format : kFormats) {
    for (int code = 0; code < 0x7f; ++code) {
      const double here = value_of(format, static_cast<std::uint8_t>(code));
      const double next = value_of(format, static_cast<std::uint8_t>(code + 1));
      if (std::isnan(here) || std::isnan(next)) continue;
      for (const double each : {here, (here + next) / 2}) {
        const auto value = static_cast<float>(each);
        for (const float near :
             {value,
              std::nextafter(value, 0.0F),
              std::nextafter(value, 1e30F)}) {
          values.push_back(near);
          values.push_back(-near);
        }
      }
    }
  }
  std::uint32_t state = 1;
  for (int i = 0; i < 2000; ++i) {
    state = state * 1664525 + 1013904223;
    values.push_back(std::bit_cast<float>(state));
  }
  return values;
}

std::size_t at(Float8Format format) { return static_cast<std::size_t>(format); }
std::size_t at(CastSource source) { return static_cast<std::size_t>(source); }

TEST(CastKernels, RoundToTheNearestValue) {
  const std::vector<float> values = interesting_values();
  const auto count = static_cast<std::int64_t>(values.size());
  for (const Float8Format format : kFormats) {
    std::vector<std::uint8_t> expected;
    for (const float value : values) expected.push_back(nearest(format, value));
    for (const CastKernels* kernels : supported_cast_kernels()) {
      SCOPED_TRACE(std::string(kernels->name));
      std::vector<std::uint8_t> codes(values.size());
      kernels->cast[at(format)][at(CastSource::float32)](
          values.data(), count, 1, codes.data());
      for (std::size_t i = 0; i < values.size(); ++i)
        ASSERT_EQ(codes[i], expected[i])
            << values[i] << " format " << at(format);
    }
  }
}

float float_of_half(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int mantissa = bits & 1023;
  float magnitude = exponent == 0
      ? std::ldexp(static_cast<float>(mantissa), -24)
      : std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
  if (exponent == 31) {
    magnitude = mantissa == 0 ? std::numeric_limits<float>::infinity()
                              : std::numeric_limits<float>::quiet_NaN();
  }
  return std::copysign(magnitude, (bits & 0x8000) != 0 ? -1.0F : 1.0F);
}

TEST(CastKernels, TakeAllValuesOfTheHalfPrecisions) {
  std::vector<std::uint16_t> values(1 << 16);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<std::uint16_t>(i);
  const auto count = static_cast<std::int64_t>(values.size());
  for (const CastSource source : {CastSource::bfloat16, CastSource::float16}) {
    std::vector<float> floats;
    for (const std::uint16_t bits : values) {
      floats.push_back(
          source == CastSource::bfloat16
              ? std::bit_cast<float>(std::uint32_t{bits} << 16)
              : float_of_half(bits));
    }
    for (const Float8Format format : kFormats) {
      for (const CastKernels* kernels : supported_cast_kernels()) {
        SCOPED_TRACE(std::string(kernels->name));
        std::vector<std::uint8_t> expected(values.size());
        std::vector<std::uint8_t> codes(values.size());
        kernels->cast[at(format)][at(CastSource::float32)](
            floats.data(), count, 0.37F, expected.data());
        kernels->cast[at(format)][at(source)](
            values.data(), count, 0.37F, codes.data());
        ASSERT_EQ(codes, expected);
      }
    }
  }
}

TEST(CastKernels, CastAnyNumberOfValues) {
  const std::vector<float> values = interesting_values();
  for (const CastKernels* kernels : supported_cast_kernels()) {
    SCOPED_TRACE(std::string(kernels->name));
    for (std::int64_t count = 0; count < 70; ++count) {
      std::vector<std::uint8_t> codes(80, 0xaa);
      std::vector<std::uint8_t> by_column(80, 0xaa);
      std::vector<float> scales(static_cast<std::size_t>(count), 2.5F);
      kernels->cast[0][0](values.data() + 20, count, 2.5F, codes.data());
      kernels->cast_columns[0][0](
          values.data() + 20, count, scales.data(), by_column.data());
      EXPECT_EQ(codes, by_column);
      for (std::size_t i = 0; i < codes.size(); ++i) {
        const bool is_written = static_cast<std::int64_t>(i) < count;
        EXPECT_EQ(
            codes[i],
            is_written ? nearest(Float8Format::e4m3fn, values[i + 20] * 2.5F)
                       : 0xaa);
      }
    }
  }
}

TEST(CastKernels, FindTheLargestAbsoluteValue) {
  for (const CastKernels* kernels : supported_cast_kernels()) {
    SCOPED_TRACE(std::string(kernels->name));
    const auto amax = kernels->amax[0];
    EXPECT_EQ(amax(nullptr, 0), 0);
    for (std::int64_t count = 1; count < 70; ++count) {
      std::vector<float> values(static_cast<std::size_t>(count), 0.5F);
      values[static_cast<std::size_t>(count / 2)] = -7;
      EXPECT_EQ(amax(values.data(), count), 7);
      std::vector<float> columns(values.size(), 0.75F);
      kernels->amax_of_columns[0](values.data(), count, columns.data());
      for (std::int64_t i = 0; i < count; ++i)
        EXPECT_EQ(
            columns[static_cast<std::size_t>(i)], i == count / 2 ? 7 : 0.75F);
      values.back() = -std::numeric_limits<float>::infinity();
      EXPECT_EQ(
          amax(values.data(), count), std::numeric_limits<float>::infinity());
      values.front() = std::numeric_limits<float>::quiet_NaN();
      EXPECT_TRUE(std::isnan(amax(values.data(), count)));
    }
  }
}

// The largest power of two by which a block can be multiplied without exceeding
// the format's largest value, with an exponent that E8M0 has.
float scale_of_block(Float8Format format, float amax) {
  if (std::isnan(amax)) return amax;
  if (std::isinf(amax)) return std::ldexp(1.0F, -127);
  int exponent = 127;
  while (std::ldexp(static_cast<double>(amax), exponent) >
         largest_value(format))
    --exponent;
  return std::ldexp(1.0F, exponent);
}

TEST(CastKernels, CastBlocksWithScalesOfTheirOwn) {
  constexpr std::int64_t kBlock = kMxBlockSize;
  const std::vector<float> amaxes = interesting_values();
  std::vector<float> values;
  std::uint32_t state = 7;
  for (const float amax : amaxes) {
    for (std::int64_t i = 0; i < kBlock; ++i) {
      state = state * 1664525 + 1013904223;
      const float share = static_cast<float>(state >> 8) * 0x1p-24F;
      values.push_back(
          std::isfinite(amax) ? amax * (share - 0.5F)
              : amax > 0      ? 1
                              : share);
    }
    values[values.size() - 1 - state % kBlock] = amax;
  }
  for (const Float8Format format : kFormats) {
    for (const CastKernels* kernels : supported_cast_kernels()) {
      SCOPED_TRACE(std::string(kernels->name));
      std::vector<std::int64_t> counts{
          static_cast<std::int64_t>(amaxes.size())};
      for (std::int64_t count = 0; count < 20; ++count) counts.push_back(count);
      for (const std::int64_t count : counts) {
        std::vector<float> scales(amaxes.size(), 7);
        std::vector<std::uint8_t> codes(values.size(), 0xaa);
        kernels->scales_of_blocks[at(format)][at(CastSource::float32)](
            values.data(), count, scales.data());
        kernels->cast_blocks[at(format)][at(CastSource::float32)](
            values.data(), count, scales.data(), codes.data());
        for (std::size_t i = 0; i < amaxes.size(); ++i) {
          if (i >= static_cast<std::size_t>(count)) {
            ASSERT_EQ(scales[i], 7);
            continue;
          }
          const float expected = scale_of_block(format, std::fabs(amaxes[i]));
          if (std::isnan(expected)) {
            ASSERT_TRUE(std::isnan(scales[i]));
          } else {
            ASSERT_EQ(scales[i], expected) << amaxes[i];
          }
        }
        for (std::int64_t block = 0; block < count; ++block) {
          const float scale = scales[static_cast<std::size_t>(block)];
          std::vector<std::uint8_t> expected(kBlock);
          kernels->cast[at(format)][at(CastSource::float32)](
              values.data() + block * kBlock, kBlock, scale, expected.data());
          for (std::int64_t i = 0; i < kBlock; ++i) {
            const std::uint8_t code =
                codes[static_cast<std::size_t>(block * kBlock + i)];
            // The compiler decides which of two NaNs a product becomes.
            if (std::isnan(scale)) {
              ASSERT_TRUE(std::isnan(value_of(format, code)));
            } else {
              ASSERT_EQ(code, expected[static_cast<std::size_t>(i)]);
            }
          }
        }
        EXPECT_EQ(
            std::count(codes.begin() + count * kBlock, codes.end(), 0xaa),
            static_cast<std::ptrdiff_t>(codes.size()) - count * kBlock);
      }
    }
  }
}

TEST(CastKernels, FindTheLargestValueWhileTheyCast) {
  std::vector<float> values = interesting_values();
  std::erase_if(values, [](float value) { return !std::isfinite(value); });
  for (const CastKernels* kernels : supported_cast_kernels()) {
    SCOPED_TRACE(std::string(kernels->name));
    for (const Float8Format format : kFormats) {
      for (std::int64_t count = 0; count < 70; ++count) {
        std::vector<std::uint8_t> codes(80, 0xaa), expected(80, 0xaa);
        const float* const first = values.data() + 40;
        const float found = kernels->cast_finding_amax[at(format)][0](
            first, count, 2.5F, codes.data());
        kernels->cast[at(format)][0](first, count, 2.5F, expected.data());
        EXPECT_EQ(codes, expected);
        EXPECT_EQ(found, kernels->amax[0](first, count));
      }
    }
    std::vector<float> bad(33, 1);
    bad[32] = -std::numeric_limits<float>::infinity();
    std::vector<std::uint8_t> codes(33);
    const auto cast = kernels->cast_finding_amax[0][0];
    EXPECT_EQ(
        cast(bad.data(), 33, 1, codes.data()),
        std::numeric_limits<float>::infinity());
    bad[3] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(std::isnan(cast(bad.data(), 33, 1, codes.data())));
  }
}

TEST(CastKernels, RoundRandomlyWithoutBias) {
  // Values a quarter of the way between two normal or subnormal neighbours, and
  // values that need no rounding.
  struct Case {
    float value;
    double mean;
  };
  const Case cases[] = {
      {1.0F + 0.125F / 4, 1.0 + 0.125 / 4},
      {-(1.0F + 0.125F / 4), -(1.0 + 0.125 / 4)},
      {0.001953125F * 1.25F, 0.001953125 * 1.25},
      {0.001953125F * 0.25F, 0.001953125 * 0.25},
      {208.0F, 208},
      {1000.0F, 448},
      {0.0F, 0}};
  constexpr std::int64_t kCount = 100003;
  for (const Case& each : cases) {
    const std::vector<float> values(kCount, each.value);
    std::vector<std::uint8_t> first;
    for (const CastKernels* kernels : supported_cast_kernels()) {
      SCOPED_TRACE(std::string(kernels->name));
      std::vector<std::uint8_t> codes(values.size());
      kernels->cast_randomly[0][0](
          values.data(), kCount, 1, {77, 0}, codes.data());
      double sum = 0;
      for (const std::uint8_t code : codes)
        sum += value_of(Float8Format::e4m3fn, code);
      EXPECT_NEAR(
          sum / kCount, each.mean, std::fabs(each.value) * 0.01 + 1e-12);
      if (first.empty()) first = codes;
      EXPECT_EQ(codes, first);
      kernels->cast_randomly[0][0](
          values.data(), kCount, 1, {78, 0}, codes.data());
      if (each.mean != 208 && each.mean != 448 && each.mean != 0) {
        EXPECT_NE(codes, first);
      }
    }
  }
}

TEST(CastKernels, RoundByPlaceWhereverTheyBegin) {
  const std::vector<float> values = interesting_values();
  const std::vector<float> scales(200, 1.5F);
  // The last range crosses the positions that 32 bits can count.
  for (const std::uint64_t begin : {0UL, 7UL, (1UL << 32) - 91}) {
    std::vector<std::uint8_t> expected;
    for (const CastKernels* kernels : supported_cast_kernels()) {
      SCOPED_TRACE(std::string(kernels->name));
      std::vector<std::uint8_t> whole(200), parts(200), columns(200);
      kernels->cast_randomly[1][0](
          values.data(), 200, 1.5F, {5, begin}, whole.data());
      kernels->cast_randomly[1][0](
          values.data(), 33, 1.5F, {5, begin}, parts.data());
      kernels->cast_randomly[1][0](
          values.data() + 33, 167, 1.5F, {5, begin + 33}, parts.data() + 33);
      kernels->cast_columns_randomly[1][0](
          values.data(), 200, scales.data(), {5, begin}, columns.data());
      EXPECT_EQ(parts, whole);
      EXPECT_EQ(columns, whole);
      if (expected.empty()) expected = whole;
      EXPECT_EQ(whole, expected);
    }
  }
}

TEST(CastKernels, DecodeAllCodes) {
  std::vector<std::uint8_t> codes;
  for (int code = 0; code < 256; ++code)
    codes.push_back(static_cast<std::uint8_t>(code));
  const std::vector<float> scales(256, 3);
  for (const Float8Format format : kFormats) {
    for (const CastKernels* kernels : supported_cast_kernels()) {
      SCOPED_TRACE(std::string(kernels->name));
      std::vector<float> plain(256), scaled(256), columns(256);
      kernels->decode[at(format)](codes.data(), 256, 1, plain.data());
      kernels->decode[at(format)](codes.data(), 250, 3, scaled.data());
      kernels->decode_columns[at(format)](
          codes.data(), 250, scales.data(), columns.data());
      for (std::size_t i = 0; i < codes.size(); ++i) {
        const double expected = value_of(format, codes[i]);
        if (format == Float8Format::e5m2 && (codes[i] & 0x7f) == 0x7c) {
          EXPECT_TRUE(std::isinf(plain[i])) << i;
        } else if (std::isnan(expected)) {
          EXPECT_TRUE(std::isnan(plain[i])) << i;
        } else {
          EXPECT_EQ(plain[i], expected) << i;
          EXPECT_EQ(std::signbit(plain[i]), codes[i] >= 0x80) << i;
          EXPECT_EQ(scaled[i], i < 250 ? plain[i] / 3 : 0) << i;
          EXPECT_EQ(columns[i], scaled[i]) << i;
        }
      }
    }
  }
}

}  // namespace cast_kernels_test

}  // namespace accelerate::detail
