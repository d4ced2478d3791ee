#include "gate/placeholder.h"

#include <cstdint>
#include <utility>

#include <c10/core/TensorImpl.h>
#include <torch/csrc/autograd/variable.h>

namespace accelerate::detail {

namespace {

// Thread-local because a listener follows its own thread's operators.
thread_local PlaceholderListener* innermost_listener = nullptr;

}  // namespace

PlaceholderListener::PlaceholderListener()
    : enclosing_(std::exchange(innermost_listener, this)) {}

PlaceholderListener::~PlaceholderListener() { innermost_listener = enclosing_; }

void become(const at::Tensor& placeholder, at::Tensor value) {
  // A leaf would keep its gradient, and has no edge.
  if (value.requires_grad() && value.is_leaf()) value = value.alias();
  c10::TensorImpl& impl = *placeholder.unsafeGetTensorImpl();
  impl.shallow_copy_from(value.getIntrusivePtr());
  impl.set_requires_grad(false);
  // Nodes that saved `value` notice changes of the placeholder.
  if (!value.is_inference())
    impl.set_version_counter(value.unsafeGetTensorImpl()->version_counter());
  if (const auto function = value.grad_fn()) {
    torch::autograd::impl::set_gradient_edge(
        placeholder, {function, static_cast<std::uint32_t>(value.output_nr())});
  }
  if (innermost_listener != nullptr)
    innermost_listener->became(placeholder, value);
}

}  // namespace accelerate::detail
