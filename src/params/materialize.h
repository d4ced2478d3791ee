#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace accelerate::detail {

/// Gives a meta tensor uninitialised memory on `device`, visible through every
/// handle to it; other tensors are left alone.
void materialize(const at::Tensor& tensor, c10::Device device);

}  // namespace accelerate::detail
