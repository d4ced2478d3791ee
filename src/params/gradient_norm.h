#pragma once

#include <span>

#include <ATen/core/Tensor.h>

#include "params/parameter_table.h"

namespace accelerate::detail {

/// A parameter and the mesh over which it is sharded.
struct PlacedParameter {
  const Parameter* row = nullptr;
  const Mesh* mesh = nullptr;
};

/// Norm of the gradients of `rows` as if every parameter were unsharded: rows
/// are grouped by the axes over which they are split, each group's sum of
/// powers is reduced over exactly those axes, and the sums are added, so that
/// replicated rows count once. `norm_type` is any p > 0, or infinity. Returns a
/// real 0-d tensor on the gradients' device, fp64 if a row is (or complex128),
/// otherwise fp32; 0 if there are none.
at::Tensor gradient_norm(
    std::span<const PlacedParameter> rows,
    double norm_type);

}  // namespace accelerate::detail
