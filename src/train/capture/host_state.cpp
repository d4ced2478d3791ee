#include "train/capture/host_state.h"

#include <unordered_set>

#include <torch/optim/optimizer.h>

#include "train/session/session.h"

namespace accelerate::detail {

std::vector<at::Tensor> parameters_of(const Session& session) {
  std::vector<at::Tensor> found;
  std::unordered_set<const void*> seen;
  const auto add = [&](const at::Tensor& parameter) {
    if (parameter.defined() &&
        seen.insert(parameter.unsafeGetTensorImpl()).second)
      found.push_back(parameter);
  };
  for (const auto& model : session.prepared.models) {
    for (const Parameter& row : model->table.rows()) add(row.tensor);
  }
  for (const auto& optimizer : session.prepared.optimizers) {
    if (optimizer->inner == nullptr) continue;
    for (const auto& group : optimizer->inner->param_groups()) {
      for (const at::Tensor& parameter : group.params()) add(parameter);
    }
  }
  return found;
}

Gradients gradients_of(const std::vector<at::Tensor>& parameters) {
  Gradients gradients;
  gradients.reserve(parameters.size());
  for (const at::Tensor& parameter : parameters)
    gradients.emplace_back(parameter, parameter.grad());
  return gradients;
}

void set_gradients(const Gradients& gradients) {
  for (const auto& [parameter, gradient] : gradients) {
    if (!parameter.grad().is_same(gradient))
      parameter.mutable_grad() = gradient;
  }
}

HostState::HostState(
    Session& session,
    const std::vector<at::Tensor>& parameters)
    : session_(session),
      step_(session.step),
      clock_(session.clock),
      window_(session.window.progress),
      scale_is_due_(session.scaling.is_due),
      loader_(session.active_loader()),
      num_micro_steps_(loader_ ? loader_->num_micro_steps : 0),
      gradients_(gradients_of(parameters)) {
  for (const auto& optimizer : session.prepared.optimizers) {
    steps_.push_back(
        {optimizer.get(),
         optimizer->num_backwards_used,
         optimizer->step_was_skipped});
  }
}

void HostState::restore() {
  // The scaler forgets the infinities it found, and multiplies no gradients.
  for (const auto& [parameter, gradient] : gradients_)
    parameter.mutable_grad().reset();
  for (const Steps& steps : steps_) {
    torch::optim::Optimizer* const inner = steps.optimizer->inner;
    if (session_.scaling.scaler && inner != nullptr)
      session_.scaling.scaler->undo_unscale_(*inner);
    steps.optimizer->num_backwards_used = steps.num_backwards_used;
    steps.optimizer->step_was_skipped = steps.step_was_skipped;
  }
  set_gradients(gradients_);
  session_.step = step_;
  session_.clock = clock_;
  session_.window.progress = window_;
  session_.scaling.is_due = scale_is_due_;
  if (loader_ != nullptr) loader_->num_micro_steps = num_micro_steps_;
}

}  // namespace accelerate::detail
