#include "params/materialize.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

namespace accelerate::detail {

void materialize(const at::Tensor& tensor, c10::Device device) {
  if (!tensor.is_meta()) return;
  const at::NoGradGuard no_grad;
  const at::Tensor memory = at::empty_strided(
      tensor.sizes(),
      tensor.strides(),
      tensor.options().device(device).requires_grad(false));
  // set_data() refuses a tensor on another device type.
  tensor.unsafeGetTensorImpl()->shallow_copy_from(memory.getIntrusivePtr());
}

}  // namespace accelerate::detail
