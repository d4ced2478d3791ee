#pragma once

#include <functional>

#include <ATen/core/Tensor.h>

#include <accelerate/fp8.h>

namespace accelerate::detail {

/// Rounds queries, keys or values [..., heads, positions, elements] to float8
/// (e4m3), but keeps their dtype: scales are powers of two, so bf16 and fp16
/// represent all results exactly. The gradient passes unchanged. `agree`:
/// maximizes amaxes, in place, over the ranks that have other positions; null
/// if this rank has all.
at::Tensor round_to_float8(
    const at::Tensor& heads,
    Float8Attention granularity,
    const std::function<void(const at::Tensor& amax)>& agree = nullptr);

}  // namespace accelerate::detail
