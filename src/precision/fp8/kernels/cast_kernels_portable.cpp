#include "precision/fp8/kernels/cast_kernel_sets.h"

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

#define ACCELERATE_KERNEL

namespace accelerate::detail {

namespace {

struct PortableCastKernels {
  static constexpr int kLanes = 4;
  typedef float Floats __attribute__((vector_size(16)));
  typedef std::uint32_t Words __attribute__((vector_size(16)));
  typedef std::int32_t Ints __attribute__((vector_size(16)));
  typedef std::uint16_t Halves __attribute__((vector_size(8)));
  typedef std::uint8_t Bytes __attribute__((vector_size(4)));

  static Words widen(Halves values) {
    return __builtin_convertvector(values, Words);
  }
  static Words widen(Bytes values) {
    return __builtin_convertvector(values, Words);
  }
  static Bytes narrow(Words values) {
    return __builtin_convertvector(values, Bytes);
  }
  static Words smaller(Words a, Words b) { return (Ints)a < (Ints)b ? a : b; }
  static Words larger(Words a, Words b) { return (Ints)a < (Ints)b ? b : a; }
  static std::uint32_t largest_word(Words values) {
    std::uint32_t found = 0;
    for (int lane = 0; lane < kLanes; ++lane)
      found = std::max<std::uint32_t>(found, values[lane]);
    return found;
  }

#include "precision/fp8/kernels/cast_kernels.inl"
};

}  // namespace

const CastKernels* portable_cast_kernels() {
  static constexpr CastKernels kKernels =
      cast_kernels_of<PortableCastKernels>("portable");
  return &kKernels;
}

}  // namespace accelerate::detail

#undef ACCELERATE_KERNEL
