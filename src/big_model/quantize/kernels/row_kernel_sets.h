#pragma once

#include "big_model/quantize/kernels/row_kernels.h"

// Unrolls the next loop, so that the arrays it indexes become registers.
#if defined(__clang__)
#define ACCELERATE_UNROLL _Pragma("unroll")
#else
#define ACCELERATE_UNROLL _Pragma("GCC unroll 16")
#endif

// For functions that only prefetch: g++ treats calls that it does not inline at
// once as free of side effects, and removes them.
#define ACCELERATE_INLINE [[gnu::always_inline]] inline

namespace accelerate::detail {

template <class Kernels>
constexpr RowKernels row_kernels_of(std::string_view name) {
  return {
      name,
      &Kernels::inputs_for_4bit,
      &Kernels::multiply_4bit,
      &Kernels::multiply_int8,
      &Kernels::dequantize_4bit,
      &Kernels::find_codes,
      &Kernels::multiply_int8_int8};
}

// Null if the compiler targets other processors, or the processor lacks the
// instructions.
const RowKernels* avx512_row_kernels();
const RowKernels* avx2_row_kernels();
const RowKernels* portable_row_kernels();

}  // namespace accelerate::detail
