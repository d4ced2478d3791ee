#include "activations/fingerprint.h"

#include <algorithm>
#include <cmath>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

namespace accelerate::detail {

Fingerprint fingerprint_of(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  // Byte tensors are kernels' workspace, some of which is never written.
  if (tensor.numel() == 0 || tensor.layout() != at::kStrided ||
      tensor.is_complex() || tensor.is_quantized() ||
      tensor.scalar_type() == at::kByte) {
    return {};
  }
  const double sum = tensor.sum(at::kDouble).item<double>();
  if (!tensor.is_floating_point()) return {sum, std::abs(sum)};
  return {
      sum,
      at::linalg_vector_norm(tensor, 1, {}, false, at::kDouble).item<double>()};
}

// The tolerance is for accelerators, which may sum in another order each time.
bool Fingerprint::is_like(const Fingerprint& other) const {
  const auto alike = [&](double mine, double theirs) {
    if (std::isnan(mine) || std::isnan(theirs))
      return std::isnan(mine) && std::isnan(theirs);
    if (std::isinf(mine) || std::isinf(theirs)) return mine == theirs;
    return std::abs(mine - theirs) <=
        1e-3 * std::max(magnitude, other.magnitude);
  };
  return alike(sum, other.sum) && alike(magnitude, other.magnitude);
}

}  // namespace accelerate::detail
