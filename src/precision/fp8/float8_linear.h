#pragma once

#include <ATen/core/Tensor.h>

#include "precision/fp8/float8_layer.h"

namespace accelerate::detail {

/// input [..., k] times `transposed_weight` [k, n], in the dtype of the input,
/// with gradients; the layer's rules say how. Nothing is added.
///
/// Largest values count for delayed scales when a backward uses what a forward
/// computed, so that evaluations leave no trace; those of layers that have no
/// gradients count at once, unless gradients are disabled.
at::Tensor float8_product(
    const at::Tensor& input,
    const at::Tensor& transposed_weight,
    const c10::intrusive_ptr<Float8Layer>& layer);

}  // namespace accelerate::detail
