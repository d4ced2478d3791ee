#include "precision/fp8/kernels/cast_kernel_sets.h"

#if defined(__x86_64__)

#if defined(__GNUC__) && !defined(__clang__)
// Spurious g++ 12 warnings about vectors (its bug 105593), and a note about
// passing them to functions, all of which are in this file.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>

#include <immintrin.h>

#define ACCELERATE_KERNEL __attribute__((target("avx2")))

namespace accelerate::detail {

namespace {

struct Avx2CastKernels {
  static constexpr int kLanes = 8;
  typedef float Floats __attribute__((vector_size(32)));
  typedef std::uint32_t Words __attribute__((vector_size(32)));
  typedef std::int32_t Ints __attribute__((vector_size(32)));
  typedef std::uint16_t Halves __attribute__((vector_size(16)));
  typedef std::uint8_t Bytes __attribute__((vector_size(8)));

  ACCELERATE_KERNEL static Words widen(Halves values) {
    return (Words)_mm256_cvtepu16_epi32((__m128i)values);
  }
  ACCELERATE_KERNEL static Words widen(Bytes values) {
    std::int64_t bytes;
    std::memcpy(&bytes, &values, sizeof bytes);
    return (Words)_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes));
  }
  ACCELERATE_KERNEL static Bytes narrow(Words values) {
    const __m256i words = (__m256i)values;
    // Each half of the register is packed separately.
    const __m128i halves = _mm256_castsi256_si128(
        _mm256_permute4x64_epi64(_mm256_packus_epi32(words, words), 8));
    const std::int64_t packed =
        _mm_cvtsi128_si64(_mm_packus_epi16(halves, halves));
    Bytes bytes;
    std::memcpy(&bytes, &packed, sizeof bytes);
    return bytes;
  }
  ACCELERATE_KERNEL static Words smaller(Words a, Words b) {
    return (Words)_mm256_min_epi32((__m256i)a, (__m256i)b);
  }
  ACCELERATE_KERNEL static Words larger(Words a, Words b) {
    return (Words)_mm256_max_epi32((__m256i)a, (__m256i)b);
  }
  ACCELERATE_KERNEL static std::uint32_t largest_word(Words values) {
    const __m256i all = (__m256i)values;
    const __m128i four = _mm_max_epi32(
        _mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
    const __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    const __m128i one = _mm_max_epi32(two, _mm_shuffle_epi32(two, 0xb1));
    return static_cast<std::uint32_t>(_mm_cvtsi128_si32(one));
  }

#include "precision/fp8/kernels/cast_kernels.inl"
};

}  // namespace

const CastKernels* avx2_cast_kernels() {
  static constexpr CastKernels kKernels =
      cast_kernels_of<Avx2CastKernels>("avx2");
  return __builtin_cpu_supports("avx2") ? &kKernels : nullptr;
}

}  // namespace accelerate::detail

#undef ACCELERATE_KERNEL

#else

namespace accelerate::detail {

const CastKernels* avx2_cast_kernels() { return nullptr; }

}  // namespace accelerate::detail

#endif
