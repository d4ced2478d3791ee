#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace accelerate::detail {

/// Formats of 8 bits. e4m3fn and e5m2: OCP 8-bit Floating Point Specification,
/// 2023; the two "uz" formats have no negative zero, a bias larger by one, and
/// a single NaN, 0x80.
enum class Float8Format { e4m3fn, e5m2, e4m3fnuz, e5m2fnuz };
inline constexpr std::size_t kNumFloat8Formats = 4;

/// The types that values are cast from.
enum class CastSource { float32, bfloat16, float16 };
inline constexpr std::size_t kNumCastSources = 3;

/// The number of elements that share a scale in the MX formats (OCP
/// Microscaling Formats Specification, 2023).
inline constexpr std::int64_t kMxBlockSize = 32;

/// The largest finite value of a format.
constexpr float largest_value(Float8Format type) {
  switch (type) {
    case Float8Format::e4m3fn:
      return 448;
    case Float8Format::e4m3fnuz:
      return 240;
    case Float8Format::e5m2:
    case Float8Format::e5m2fnuz:
      return 57344;
  }
  return 0;
}

/// Determines stochastic rounding: a seed, and the place of the first value in
/// its matrix.
struct RandomPlace {
  std::uint32_t seed = 0;
  std::uint64_t first = 0;
};

/// Single-threaded casts for one instruction set; all sets give the same bits.
/// Values are converted to fp32, multiplied by a scale in fp32, saturated to
/// the format's largest value, and rounded to nearest, ties to even. Infinity
/// becomes the largest value, NaN stays NaN. Pointers need no alignment.
struct CastKernels {
  using Cast = void (*)(
      const void* values,
      std::int64_t count,
      float scale,
      std::uint8_t* codes);
  using CastFindingAmax = float (*)(
      const void* values,
      std::int64_t count,
      float scale,
      std::uint8_t* codes);
  using CastColumns = void (*)(
      const void* values,
      std::int64_t count,
      const float* scales,
      std::uint8_t* codes);
  using CastRandomly = void (*)(
      const void* values,
      std::int64_t count,
      float scale,
      RandomPlace random,
      std::uint8_t* codes);
  using CastColumnsRandomly = void (*)(
      const void* values,
      std::int64_t count,
      const float* scales,
      RandomPlace random,
      std::uint8_t* codes);
  using Decode = void (*)(
      const std::uint8_t* codes,
      std::int64_t count,
      float scale,
      float* values);
  using DecodeColumns = void (*)(
      const std::uint8_t* codes,
      std::int64_t count,
      const float* scales,
      float* values);
  using FindScalesOfBlocks =
      void (*)(const void* values, std::int64_t num_blocks, float* scales);
  using CastBlocks = void (*)(
      const void* values,
      std::int64_t num_blocks,
      const float* scales,
      std::uint8_t* codes);
  using FindAmax = float (*)(const void* values, std::int64_t count);
  using FindAmaxOfColumns =
      void (*)(const void* values, std::int64_t count, float* amax);
  template <class Function>
  using PerFormatOnly = std::array<Function, kNumFloat8Formats>;
  template <class Function>
  using PerSource = std::array<Function, kNumCastSources>;
  template <class Function>
  using PerFormat = std::array<PerSource<Function>, kNumFloat8Formats>;

  std::string_view name;
  /// Casts with one scale for all values.
  PerFormat<Cast> cast;
  /// Casts with one scale and returns the `amax` of the values before scaling:
  /// for scales that are not derived from them.
  PerFormat<CastFindingAmax> cast_finding_amax;
  /// Casts with one scale per value.
  PerFormat<CastColumns> cast_columns;
  /// The scales with which MX formats cast full blocks of kMxBlockSize values:
  /// powers of two.
  PerFormat<FindScalesOfBlocks> scales_of_blocks;
  /// Casts with one scale per such block.
  PerFormat<CastBlocks> cast_blocks;
  /// Rounds stochastically: up with a probability proportional to the value's
  /// distance from the lower neighbour, so that the mean of many casts is the
  /// value. The random bits are a function of the seed and the value's place.
  PerFormat<CastRandomly> cast_randomly;
  PerFormat<CastColumnsRandomly> cast_columns_randomly;
  /// Restores values: codes in fp32, divided by a scale.
  PerFormatOnly<Decode> decode;
  PerFormatOnly<DecodeColumns> decode_columns;
  /// The largest absolute value; NaN if any value is NaN; 0 without values.
  PerSource<FindAmax> amax;
  /// Sets amax[i] to the larger of itself and |values[i]|; NaN as above.
  PerSource<FindAmaxOfColumns> amax_of_columns;
};

/// Returns the fastest set that this processor supports.
const CastKernels& cast_kernels();

/// Returns all sets that this processor supports, the fastest first.
std::span<const CastKernels* const> supported_cast_kernels();

}  // namespace accelerate::detail
