#include "parallel/replicate/pending_gradients.h"

#include <cstddef>

namespace accelerate::detail {

PendingGradients::State PendingGradients::state_of(
    const at::Tensor& parameter) {
  const at::Tensor& gradient = parameter.grad();
  if (!gradient.defined()) return {nullptr, 0};
  return {
      gradient.unsafeGetTensorImpl(),
      gradient.is_inference() ? 0 : gradient._version()};
}

void PendingGradients::begin_backward(
    const std::vector<at::Tensor>& parameters) {
  had_backward_ = true;
  before_.clear();
  for (const at::Tensor& parameter : parameters)
    before_.push_back(state_of(parameter));
}

void PendingGradients::end_backward(const std::vector<at::Tensor>& parameters) {
  for (std::size_t i = 0; i < before_.size(); ++i) {
    if (state_of(parameters[i]) == before_[i]) continue;
    changed_.resize(before_.size());
    changed_[i] = true;
  }
  before_.clear();
}

void PendingGradients::add_backward(const std::vector<at::Tensor>& parameters) {
  had_backward_ = true;
  changed_.resize(parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i)
    changed_[i] = changed_[i] || parameters[i].grad().defined();
}

void PendingGradients::take(const std::vector<at::Tensor>& parameters) {
  before_.clear();
  changed_.clear();
  if (had_backward_) add_backward(parameters);
}

void PendingGradients::clear() {
  had_backward_ = false;
  changed_.clear();
}

}  // namespace accelerate::detail
