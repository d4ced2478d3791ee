#pragma once

#include <ATen/core/Tensor.h>

namespace accelerate::detail {

/// Of what was saved and of what was computed in its place: alike, unless
/// somebody wrote behind LibTorch's operators.
struct Fingerprint {
  double sum = 0;
  double magnitude = 0;
  [[nodiscard]] bool is_like(const Fingerprint& other) const;
};

/// Of any tensor; of those that no sum says anything about, always the same.
Fingerprint fingerprint_of(const at::Tensor& tensor);

}  // namespace accelerate::detail
