#include "parallel/precise_view.h"

#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "gate/gate.h"
#include "gate/watched_tensor.h"

namespace accelerate::detail {

PreciseView::PreciseView(const at::Tensor& parameter, const at::Tensor& values)
    : parameter_(parameter),
      values_(values),
      before_(exchange_memory(parameter, values)) {
  forget_changes();
}

void PreciseView::begin_forward() {
  if (before_forward_.defined()) return;
  const at::NoGradGuard no_grad;
  const BypassGates bypass;
  before_forward_ = exchange_memory(
      parameter_, parameter_.detach().to(before_.scalar_type()));
  version_in_forward_ = parameter_._version();
}

void PreciseView::end_forward() {
  if (!before_forward_.defined()) return;
  const at::NoGradGuard no_grad;
  const BypassGates bypass;
  const bool is_written = parameter_._version() != version_in_forward_;
  const at::Tensor rounded =
      exchange_memory(parameter_, std::exchange(before_forward_, {}));
  if (is_written) parameter_.detach().copy_(rounded);
}

bool PreciseView::is_changed() const {
  return parameter_._version() != version_ ||
      parameter_.const_data_ptr() != values_.const_data_ptr();
}

void PreciseView::forget_changes() { version_ = parameter_._version(); }

void PreciseView::hide() {
  end_forward();
  const at::NoGradGuard no_grad;
  const BypassGates bypass;
  if (parameter_.sizes() != before_.sizes()) return;
  const at::Tensor shown = exchange_memory(parameter_, before_);
  // The program may have given the parameter other memory (set_data).
  if (shown.const_data_ptr() != values_.const_data_ptr()) values_.copy_(shown);
}

}  // namespace accelerate::detail
