#pragma once

#include <ATen/core/Tensor.h>

namespace accelerate::detail {

/// Whether an operator that takes `used` can take `matrix` and transpose it:
/// both have the same memory, no hook waits for the gradient of `used` alone,
/// and the program has not detached it.
bool is_transpose_of(const at::Tensor& used, const at::Tensor& matrix);

}  // namespace accelerate::detail
