#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <accelerate/export.h>

namespace accelerate::detail {

/// Gives a meta tensor memory on `device`, of whatever is in it, in every
/// handle to it; others are left alone.
void materialize(const at::Tensor& tensor, c10::Device device);

}  // namespace accelerate::detail
