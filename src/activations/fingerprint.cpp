#include "activations/fingerprint.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

namespace accelerate::detail {

namespace {

constexpr std::int64_t kSummedAtOnce = 1 << 14;

Fingerprint sums_of(const at::Tensor& tensor) {
  // On the CPU, LibTorch copies tensors to double in order to sum in double.
  // Sums in parts, so that comparing does not need more memory than
  // recomputation saves.
  if (tensor.is_cpu() && tensor.numel() > kSummedAtOnce) {
    const auto sizes = tensor.sizes();
    const auto dim = std::ranges::max_element(sizes) - sizes.begin();
    const std::int64_t size = tensor.size(dim);
    const Fingerprint first = sums_of(tensor.narrow(dim, 0, size / 2));
    const Fingerprint rest =
        sums_of(tensor.narrow(dim, size / 2, size - size / 2));
    return {first.sum + rest.sum, first.magnitude + rest.magnitude};
  }
  const double sum = tensor.sum(at::kDouble).item<double>();
  if (!tensor.is_floating_point()) return {sum, std::abs(sum)};
  return {
      sum,
      at::linalg_vector_norm(tensor, 1, {}, false, at::kDouble).item<double>()};
}

}  // namespace

Fingerprint fingerprint_of(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  // Byte tensors are kernels' workspaces, parts of which are never written.
  if (tensor.numel() == 0 || tensor.layout() != at::kStrided ||
      tensor.is_complex() || tensor.is_quantized() ||
      tensor.scalar_type() == at::kByte) {
    return {};
  }
  return sums_of(tensor);
}

// The tolerance is for accelerators, which may sum in a different order each
// time.
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
