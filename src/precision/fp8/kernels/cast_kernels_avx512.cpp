#include "precision/fp8/kernels/cast_kernel_sets.h"

#if defined(__x86_64__)

#if defined(__GNUC__) && !defined(__clang__)
// Spurious g++ 12 warnings about vectors (its bug 105593), and a note about
// passing them to functions, all of which are in this file.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>

#include <immintrin.h>

#define ACCELERATE_KERNEL \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))

namespace accelerate::detail {

namespace {

struct Avx512CastKernels {
  static constexpr int kLanes = 16;
  typedef float Floats __attribute__((vector_size(64)));
  typedef std::uint32_t Words __attribute__((vector_size(64)));
  typedef std::int32_t Ints __attribute__((vector_size(64)));
  typedef std::uint16_t Halves __attribute__((vector_size(32)));
  typedef std::uint8_t Bytes __attribute__((vector_size(16)));

  ACCELERATE_KERNEL static Words widen(Halves values) {
    return (Words)_mm512_cvtepu16_epi32((__m256i)values);
  }
  ACCELERATE_KERNEL static Words widen(Bytes values) {
    return (Words)_mm512_cvtepu8_epi32((__m128i)values);
  }
  ACCELERATE_KERNEL static Bytes narrow(Words values) {
    return (Bytes)_mm512_cvtepi32_epi8((__m512i)values);
  }
  ACCELERATE_KERNEL static Words smaller(Words a, Words b) {
    return (Words)_mm512_min_epi32((__m512i)a, (__m512i)b);
  }
  ACCELERATE_KERNEL static Words larger(Words a, Words b) {
    return (Words)_mm512_max_epi32((__m512i)a, (__m512i)b);
  }
  ACCELERATE_KERNEL static std::uint32_t largest_word(Words values) {
    return static_cast<std::uint32_t>(_mm512_reduce_max_epi32((__m512i)values));
  }

#include "precision/fp8/kernels/cast_kernels.inl"
};

}  // namespace

const CastKernels* avx512_cast_kernels() {
  static constexpr CastKernels kKernels =
      cast_kernels_of<Avx512CastKernels>("avx512");
  const bool is_supported = __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  return is_supported ? &kKernels : nullptr;
}

}  // namespace accelerate::detail

#undef ACCELERATE_KERNEL

#else

namespace accelerate::detail {

const CastKernels* avx512_cast_kernels() { return nullptr; }

}  // namespace accelerate::detail

#endif
