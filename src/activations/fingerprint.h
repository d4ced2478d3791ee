#pragma once

#include <ATen/core/Tensor.h>

namespace accelerate::detail {

/// A summary of a tensor's values. Those of an original and its recomputation
/// are alike, unless something wrote to memory without LibTorch's operators.
struct Fingerprint {
  double sum = 0;
  double magnitude = 0;
  [[nodiscard]] bool is_like(const Fingerprint& other) const;
};

/// Returns the fingerprint of any tensor; constant for tensors without a
/// meaningful sum.
Fingerprint fingerprint_of(const at::Tensor& tensor);

}  // namespace accelerate::detail
