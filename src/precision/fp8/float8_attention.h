#pragma once

#include <functional>

#include <ATen/core/Tensor.h>

#include <accelerate/fp8.h>

namespace accelerate::detail {

/// The values that a cast to float8 (e4m3) leaves of queries, keys or values
/// [..., heads, positions, elements], in their own dtype: scales are powers of
/// two, so bf16 and fp16 have all of them. The gradient passes unchanged.
/// `agree`: makes largest values those of all ranks that have other positions,
/// in place; null if this rank has all.
at::Tensor round_to_float8(
    const at::Tensor& heads,
    Float8Attention granularity,
    const std::function<void(const at::Tensor& amax)>& agree = nullptr);

}  // namespace accelerate::detail
