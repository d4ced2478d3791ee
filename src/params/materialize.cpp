#include "params/materialize.h"

#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "gate/gate_entry.h"

namespace accelerate::detail {

void materialize(const at::Tensor& tensor, c10::Device device) {
  if (!tensor.is_meta()) return;
  const at::NoGradGuard no_grad;
  const at::Tensor memory = at::empty_strided(
      tensor.sizes(),
      tensor.strides(),
      tensor.options().device(device).requires_grad(false));
  std::vector<TensorWatch> watches = take_watches(tensor);
  // set_data() refuses a tensor on another device type.
  tensor.unsafeGetTensorImpl()->shallow_copy_from(memory.getIntrusivePtr());
  for (TensorWatch& watch : watches) watch_tensor(tensor, std::move(watch));
}

}  // namespace accelerate::detail
