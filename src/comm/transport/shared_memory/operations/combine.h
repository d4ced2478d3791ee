#pragma once

#include <cstddef>

#include <c10/core/ScalarType.h>

#include <accelerate/world.h>

namespace accelerate::detail {

/// Reduces `count` elements of `num_sources` arrays in the order of the arrays.
/// `out` may be one of them. Values narrower than fp32 are computed in fp32 and
/// rounded once.
using CombineFunction = void (*)(
    void* out,
    const void* const* sources,
    int num_sources,
    std::size_t count);

struct Combination {
  CombineFunction function = nullptr;
  /// Size of one of the elements that the function counts.
  std::size_t element_bytes = 1;
  at::ScalarType dtype = at::ScalarType::Byte;
  ReduceOp op = ReduceOp::sum;
};

/// Returns how to reduce these values; `function` is null if that is undefined
/// or unsupported.
[[nodiscard]] Combination combination_of(at::ScalarType dtype, ReduceOp op);

}  // namespace accelerate::detail
