#pragma once

#include <ATen/core/Tensor.h>

#include "comm/autograd/region_entrance.h"

namespace accelerate::detail {

/// The product of `input` with the transpose of `weight` (outputs x inputs),
/// plus `bias` unless undefined, as at::linear() computes it, under autocast in
/// its dtype. Its backward computes the gradient of the input first, and that
/// of the weight in a node of its own: while the gradient of the input travels,
/// if that enters a region, else before what the gradient of the input leads
/// to.
///
/// The weight may be behind a gate: it is read again in backward. May be
/// differentiated any number of times.
at::Tensor linear_product(
    const at::Tensor& input,
    const at::Tensor& weight,
    const at::Tensor& bias = {});

/// The same for what enters a region: the product takes what `input` gives.
at::Tensor linear_product(
    RegionEntrance& input,
    const at::Tensor& weight,
    const at::Tensor& bias = {});

/// What autocast would cast a factor of a product to; `tensor` without
/// autocast. Autograd records it.
at::Tensor as_autocast_product(const at::Tensor& tensor);

}  // namespace accelerate::detail
