#include <accelerate/optimizer.h>
#include <accelerate/scheduler.h>

#include <ATen/core/grad_mode.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <accelerate/error.h>

#include "train/session.h"

namespace accelerate {

namespace {

void require_prepared(const void* inner) {
  if (inner != nullptr) return;
  throw ConfigError(
      "[train] this handle was released by free_memory() or finish(); prepare the optimizer or "
      "scheduler again");
}

}  // namespace

at::Tensor Optimizer::step(const std::function<at::Tensor()>& closure) const {
  require_prepared(prepared_->inner);
  detail::Session& session = *prepared_->session;
  if (!session.clock.sync_gradients()) return {};
  at::Tensor loss = closure ? prepared_->inner->step(closure) : prepared_->inner->step();
  prepared_->is_accumulating = false;
  for (const auto& model : session.models) {
    for (const auto& strategy : model->strategies) strategy->after_step();
  }
  return loss;
}

void Optimizer::zero_grad(bool set_to_none) const {
  require_prepared(prepared_->inner);
  if (prepared_->is_accumulating && prepared_->session->clock.window() > 1) return;
  // LibTorch's own detaches in place, which gradients that are views of
  // communication buckets refuse.
  const at::NoGradGuard no_grad;
  for (auto& group : prepared_->inner->param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      at::Tensor& gradient = parameter.mutable_grad();
      if (!gradient.defined()) continue;
      if (set_to_none) {
        gradient.reset();
      } else {
        gradient.zero_();
      }
    }
  }
}

torch::optim::Optimizer& Optimizer::inner() const {
  require_prepared(prepared_->inner);
  return *prepared_->inner;
}

void Scheduler::step() const {
  require_prepared(prepared_->inner);
  if (prepared_->session->clock.sync_gradients()) prepared_->inner->step();
}

torch::optim::LRScheduler& Scheduler::inner() const {
  require_prepared(prepared_->inner);
  return *prepared_->inner;
}

}  // namespace accelerate
