#pragma once

#include "precision/fp8/kernels/cast_kernels.h"

namespace accelerate::detail {

template <class Kernels>
constexpr CastKernels cast_kernels_of(std::string_view name) {
  CastKernels set{name, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}};
  Kernels::template add_source<CastSource::float32>(set);
  Kernels::template add_source<CastSource::bfloat16>(set);
  Kernels::template add_source<CastSource::float16>(set);
  return set;
}

// These return null if the compiler targets other processors, or this processor
// lacks the instructions.
const CastKernels* avx512_cast_kernels();
const CastKernels* avx2_cast_kernels();
const CastKernels* portable_cast_kernels();

}  // namespace accelerate::detail
