#include "gate/transpose_of.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

namespace accelerate::detail {

namespace {

bool has_hooks(const at::Tensor& tensor) {
  const auto* const meta = torch::autograd::impl::get_autograd_meta(tensor);
  return meta != nullptr &&
      (meta->cpp_hooks_list_ != nullptr || !meta->hooks_.empty() ||
       meta->retains_grad_ != 0);
}

}  // namespace

bool is_transpose_of(const at::Tensor& used, const at::Tensor& matrix) {
  return matrix.dim() == 2 && used.dim() == 2 && matrix.has_storage() &&
      used.has_storage() &&
      used.storage().unsafeGetStorageImpl() ==
      matrix.storage().unsafeGetStorageImpl() &&
      used.storage_offset() == matrix.storage_offset() &&
      used.scalar_type() == matrix.scalar_type() &&
      used.size(0) == matrix.size(1) && used.size(1) == matrix.size(0) &&
      used.stride(0) == matrix.stride(1) &&
      used.stride(1) == matrix.stride(0) &&
      (!at::GradMode::is_enabled() ||
       used.requires_grad() == matrix.requires_grad()) &&
      !has_hooks(used);
}

}  // namespace accelerate::detail
