#include "big_model/quantize/kernels/row_kernel_sets.h"

#if defined(__x86_64__)

#if defined(__GNUC__) && !defined(__clang__)
// False positives of g++ 12 for its own intrinsics (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#define ACCELERATE_KERNEL __attribute__((target("avx512f,avx512bw,fma")))

namespace accelerate::detail {

namespace {

struct Avx512RowKernels {
  typedef float Floats __attribute__((vector_size(64)));
  static constexpr int kGroup = kGroupColumns;

  ACCELERATE_KERNEL static Floats load(const float* values) {
    return _mm512_loadu_ps(values);
  }
  ACCELERATE_KERNEL static void store(float* out, Floats vector) {
    _mm512_storeu_ps(out, vector);
  }
  ACCELERATE_KERNEL static float horizontal_sum(Floats vector) {
    alignas(64) std::array<float, 16> lanes;
    _mm512_store_ps(lanes.data(), vector);
    for (std::size_t half = 8; half > 0; half /= 2) {
      for (std::size_t lane = 0; lane < half; ++lane)
        lanes[lane] += lanes[lane + half];
    }
    return lanes[0];
  }

  ACCELERATE_KERNEL static void decode_int8(
      const std::int8_t* values,
      Floats (&weights)[2]) {
    ACCELERATE_UNROLL
    for (int p = 0; p < 2; ++p) {
      const __m128i bytes =
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(values + p * 16));
      weights[p] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
    }
  }

  // All 16 values are in one register; the low four bits of each 32-bit lane
  // select one.
  struct Scaled4bit {
    ACCELERATE_KERNEL explicit Scaled4bit(const float* code_values)
        : values(_mm512_loadu_ps(code_values)) {}

    ACCELERATE_KERNEL void
    decode(const std::uint8_t* codes, float scale, Floats (&weights)[2]) const {
      const __m512i bytes = _mm512_broadcast_i32x4(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
      const __m512 factor = _mm512_set1_ps(scale);
      ACCELERATE_UNROLL
      for (int p = 0; p < 2; ++p) {
        // Lane i gets byte i / 2 of the eight bytes of this part.
        const int first = p * 8;
        const __m512i places = _mm512_set_epi32(
            first + 7,
            first + 7,
            first + 6,
            first + 6,
            first + 5,
            first + 5,
            first + 4,
            first + 4,
            first + 3,
            first + 3,
            first + 2,
            first + 2,
            first + 1,
            first + 1,
            first,
            first);
        const __m512i pairs = _mm512_shuffle_epi8(bytes, places);
        const __m512i shifts =
            _mm512_set_epi32(0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4);
        weights[p] = _mm512_mul_ps(
            _mm512_permutexvar_ps(_mm512_srlv_epi32(pairs, shifts), values),
            factor);
      }
    }

    __m512 values;
  };

  ACCELERATE_KERNEL static std::int32_t
  dot_int8(const std::int8_t* a, const std::int8_t* b, std::int64_t count) {
    __m512i sums = _mm512_setzero_si512();
    std::int64_t i = 0;
    for (; i + 32 <= count; i += 32) {
      const __m512i left = _mm512_cvtepi8_epi16(
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a + i)));
      const __m512i right = _mm512_cvtepi8_epi16(
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b + i)));
      sums = _mm512_add_epi32(sums, _mm512_madd_epi16(left, right));
    }
    alignas(64) std::array<std::int32_t, 16> lanes;
    _mm512_store_si512(lanes.data(), sums);
    std::int32_t sum = 0;
    for (const std::int32_t lane : lanes) sum += lane;
    for (; i < count; ++i) sum += a[i] * b[i];
    return sum;
  }

#include "big_model/quantize/kernels/row_kernels.inl"
};

#include "big_model/quantize/kernels/chunk_products_avx512.inl"

}  // namespace

const RowKernels* avx512_row_kernels() {
  static constexpr RowKernels kKernels = [] {
    RowKernels kernels = row_kernels_of<Avx512RowKernels>("avx512");
    kernels.inputs_for_4bit = &inputs_for_4bit;
    kernels.multiply_4bit = &multiply_4bit;
    return kernels;
  }();
  const bool is_supported = __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("fma");
  return is_supported ? &kKernels : nullptr;
}

}  // namespace accelerate::detail

#undef ACCELERATE_KERNEL

#else

namespace accelerate::detail {

const RowKernels* avx512_row_kernels() { return nullptr; }

}  // namespace accelerate::detail

#endif
