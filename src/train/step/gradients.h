#pragma once

#include <ATen/core/Tensor.h>

namespace accelerate::detail {

/// Removes the gradient, or sets it to zero in place. For a parameter without
/// gradient, or an undefined one, does nothing. Call it without grad mode.
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
