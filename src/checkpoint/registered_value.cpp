#include <ATen/core/grad_mode.h>

#include <accelerate/checkpoint.h>
#include <accelerate/error.h>

#include "base/text/text.h"
#include "checkpoint/tensors/tensor_bytes.h"

namespace accelerate::detail {

void throw_out_of_range(const std::string& name, std::int64_t saved) {
  throw CheckpointError(format(
      "[checkpoint] \"{}\" was saved as {}, which the registered variable "
      "cannot hold",
      name,
      saved));
}

void throw_too_large(const std::string& name) {
  throw ConfigError(format(
      "[checkpoint] the value of \"{}\" is above 2^63 - 1, the largest that a "
      "checkpoint holds",
      name));
}

void assign_saved(at::Tensor& tensor, const at::Tensor& saved) {
  const at::NoGradGuard no_grad;
  const bool is_alike = tensor.defined() && saved.defined() &&
      tensor.sizes() == saved.sizes() &&
      tensor.scalar_type() == saved.scalar_type();
  // A view whose elements share memory may be unable to take the values.
  if (is_alike && assign(tensor, saved)) return;
  const bool has_both = tensor.defined() && saved.defined();
  tensor = has_both ? saved.to(tensor.device()) : saved;
}

}  // namespace accelerate::detail
