#include "parallel/formula.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/function.h>

#include "activations/tape.h"

namespace accelerate::detail {

bool is_in_backward() { return torch::autograd::get_current_node() != nullptr; }

bool is_in_formula() {
  return is_in_backward() &&
      !c10::impl::tls_is_dispatch_key_excluded(kRecordingKey);
}

}  // namespace accelerate::detail
