#pragma once

#include <ATen/core/Tensor.h>

#include "comm/autograd/region_entrance.h"

namespace accelerate::detail {

/// Returns the product of `input` with the transpose of `weight` (outputs x
/// inputs), plus `bias` unless undefined, as at::linear() computes it; under
/// autocast in its dtype. Its backward computes the gradient of the input
/// first, and that of the weight in a node of its own: while the collective of
/// the input's gradient runs if the input enters a region, otherwise before
/// backward continues past the input.
///
/// The weight can be behind a gate: backward reads it again. Can be
/// differentiated any number of times.
at::Tensor linear_product(
    const at::Tensor& input,
    const at::Tensor& weight,
    const at::Tensor& bias = {});

/// Multiplies `input.enter()`, for an input that enters a region.
at::Tensor linear_product(
    RegionEntrance& input,
    const at::Tensor& weight,
    const at::Tensor& bias = {});

/// Casts a factor of a product as autocast would; returns `tensor` without
/// autocast. Autograd records it.
at::Tensor as_autocast_product(const at::Tensor& tensor);

}  // namespace accelerate::detail
