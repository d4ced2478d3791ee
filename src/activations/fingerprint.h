#pragma once

#include <ATen/core/Tensor.h>

namespace accelerate::detail {

/// A summary of a tensor's values. Those of an original and of its
/// recomputation are alike, unless something wrote behind LibTorch's operators.
struct Fingerprint {
  double sum = 0;
  double magnitude = 0;
  [[nodiscard]] bool is_like(const Fingerprint& other) const;
};

/// The fingerprint of any tensor; constant for tensors that have no meaningful
/// sum.
Fingerprint fingerprint_of(const at::Tensor& tensor);

}  // namespace accelerate::detail
