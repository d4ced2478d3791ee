#include "big_model/quantize/kernels/row_kernel_sets.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#define ACCELERATE_KERNEL __attribute__((target("avx2,fma")))

namespace accelerate::detail {

namespace {

struct Avx2RowKernels {
  typedef float Floats __attribute__((vector_size(32)));
  static constexpr int kGroup = kGroupColumns;

  ACCELERATE_KERNEL static Floats load(const float* values) {
    return _mm256_loadu_ps(values);
  }
  ACCELERATE_KERNEL static void store(float* out, Floats vector) {
    _mm256_storeu_ps(out, vector);
  }
  ACCELERATE_KERNEL static float horizontal_sum(Floats vector) {
    const __m128 halves = _mm_add_ps(
        _mm256_castps256_ps128(vector), _mm256_extractf128_ps(vector, 1));
    const __m128 pairs = _mm_add_ps(halves, _mm_movehl_ps(halves, halves));
    return _mm_cvtss_f32(_mm_add_ss(pairs, _mm_shuffle_ps(pairs, pairs, 1)));
  }

  ACCELERATE_KERNEL static void decode_int8(
      const std::int8_t* values,
      Floats (&weights)[4]) {
    ACCELERATE_UNROLL
    for (int p = 0; p < 4; ++p) {
      const __m128i bytes =
          _mm_loadl_epi64(reinterpret_cast<const __m128i*>(values + p * 8));
      weights[p] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
    }
  }

  // A code's four bytes come from four byte tables, by one shuffle each for all
  // 32 codes: byte shuffles are much cheaper than shuffles of floats across
  // lanes.
  struct Scaled4bit {
    ACCELERATE_KERNEL explicit Scaled4bit(const float* code_values) {
      for (std::size_t byte = 0; byte < 4; ++byte) {
        alignas(16) std::array<std::uint8_t, 16> table;
        for (std::size_t code = 0; code < 16; ++code) {
          table[code] = static_cast<std::uint8_t>(
              std::bit_cast<std::uint32_t>(code_values[code]) >> (8 * byte));
        }
        bytes[byte] = _mm256_broadcastsi128_si256(
            _mm_load_si128(reinterpret_cast<const __m128i*>(table.data())));
      }
    }

    ACCELERATE_KERNEL void
    decode(const std::uint8_t* codes, float scale, Floats (&weights)[4]) const {
      // Each byte twice, in an order that interleaving the tables' bytes within
      // lanes turns into element order.
      const __m256i twice = _mm256_setr_epi64x(
          0x0505040401010000,
          0x0d0d0c0c09090808,
          0x0707060603030202,
          0x0f0f0e0e0b0b0a0a);
      const __m256i pairs = _mm256_shuffle_epi8(
          _mm256_broadcastsi128_si256(
              _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes))),
          twice);
      const __m256i indices = _mm256_and_si256(
          _mm256_blendv_epi8(
              _mm256_srli_epi16(pairs, 4),
              pairs,
              _mm256_set1_epi16(static_cast<short>(0xff00))),
          _mm256_set1_epi8(15));
      const __m256i b0 = _mm256_shuffle_epi8(bytes[0], indices);
      const __m256i b1 = _mm256_shuffle_epi8(bytes[1], indices);
      const __m256i b2 = _mm256_shuffle_epi8(bytes[2], indices);
      const __m256i b3 = _mm256_shuffle_epi8(bytes[3], indices);
      const __m256i low_first = _mm256_unpacklo_epi8(b0, b1);
      const __m256i low_second = _mm256_unpackhi_epi8(b0, b1);
      const __m256i high_first = _mm256_unpacklo_epi8(b2, b3);
      const __m256i high_second = _mm256_unpackhi_epi8(b2, b3);
      const __m256 factor = _mm256_set1_ps(scale);
      weights[0] = scaled(_mm256_unpacklo_epi16(low_first, high_first), factor);
      weights[1] = scaled(_mm256_unpackhi_epi16(low_first, high_first), factor);
      weights[2] =
          scaled(_mm256_unpacklo_epi16(low_second, high_second), factor);
      weights[3] =
          scaled(_mm256_unpackhi_epi16(low_second, high_second), factor);
    }

    ACCELERATE_KERNEL static Floats scaled(__m256i bits, __m256 factor) {
      return _mm256_mul_ps(_mm256_castsi256_ps(bits), factor);
    }

    __m256i bytes[4];
  };

  // Multiplies absolute values by signed ones: the sum of two products, at most
  // 127 * 127 each, fits into the instruction's 16 bits.
  ACCELERATE_KERNEL static std::int32_t
  dot_int8(const std::int8_t* a, const std::int8_t* b, std::int64_t count) {
    __m256i sums = _mm256_setzero_si256();
    std::int64_t i = 0;
    for (; i + 32 <= count; i += 32) {
      const __m256i left =
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a + i));
      const __m256i right =
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b + i));
      const __m256i pairs = _mm256_maddubs_epi16(
          _mm256_abs_epi8(left), _mm256_sign_epi8(right, left));
      sums = _mm256_add_epi32(
          sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    alignas(32) std::array<std::int32_t, 8> lanes;
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes.data()), sums);
    std::int32_t sum = 0;
    for (const std::int32_t lane : lanes) sum += lane;
    for (; i < count; ++i) sum += a[i] * b[i];
    return sum;
  }

#include "big_model/quantize/kernels/row_kernels.inl"
};

}  // namespace

const RowKernels* avx2_row_kernels() {
  static constexpr RowKernels kKernels = row_kernels_of<Avx2RowKernels>("avx2");
  const bool is_supported =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return is_supported ? &kKernels : nullptr;
}

}  // namespace accelerate::detail

#undef ACCELERATE_KERNEL

#else

namespace accelerate::detail {

const RowKernels* avx2_row_kernels() { return nullptr; }

}  // namespace accelerate::detail

#endif
