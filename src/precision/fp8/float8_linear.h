#pragma once

#include <ATen/core/Tensor.h>

#include "precision/fp8/float8_layer.h"

namespace accelerate::detail {

/// Returns input [..., k] times `transposed_weight` [k, n] without a bias, in
/// the dtype of the input, with gradients, computed by the layer's rules.
///
/// Amaxes count for delayed scales only when a backward uses a forward's
/// results, so that evaluations leave no trace; those of layers without
/// gradients count immediately, unless gradients are disabled.
at::Tensor float8_product(
    const at::Tensor& input,
    const at::Tensor& transposed_weight,
    const c10::intrusive_ptr<Float8Layer>& layer);

}  // namespace accelerate::detail
