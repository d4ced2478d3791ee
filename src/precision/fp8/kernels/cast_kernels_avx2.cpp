#include "precision/fp8/kernels/cast_kernel_sets.h"

#if defined(__x86_64__)

#if defined(__GNUC__) && !defined(__clang__)
// False alarms of g++ 12 about vectors (its bug 105593), and a remark about how
// functions, all of this file, would pass them.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>

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
