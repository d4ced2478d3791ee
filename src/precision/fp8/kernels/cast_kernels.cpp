#include "precision/fp8/kernels/cast_kernels.h"

#include "precision/fp8/kernels/cast_kernel_sets.h"

namespace accelerate::detail {

namespace {

struct SupportedCastKernels {
  SupportedCastKernels() {
    for (const CastKernels* kernels :
         {avx512_cast_kernels(),
          avx2_cast_kernels(),
          portable_cast_kernels()}) {
      if (kernels != nullptr) sets[count++] = kernels;
    }
  }
  std::array<const CastKernels*, 3> sets{};
  std::size_t count = 0;
};

}  // namespace

std::span<const CastKernels* const> supported_cast_kernels() {
  static const SupportedCastKernels supported;
  return std::span(supported.sets).first(supported.count);
}

const CastKernels& cast_kernels() { return *supported_cast_kernels().front(); }

}  // namespace accelerate::detail
