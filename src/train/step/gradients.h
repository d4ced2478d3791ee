#pragma once

#include <ATen/core/Tensor.h>

namespace accelerate::detail {

/// Resets the gradient, or sets it to zero in place. Does nothing for an
/// undefined parameter or one without a gradient. Call it without grad mode.
inline void drop_gradient(const at::Tensor& parameter, bool set_to_none) {
  if (!parameter.defined()) return;
  at::Tensor& gradient = parameter.mutable_grad();
  if (!gradient.defined()) return;
  if (set_to_none) {
    gradient.reset();
  } else {
    gradient.zero_();
  }
}

}  // namespace accelerate::detail
