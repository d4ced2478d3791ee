#include "train/step/scaling.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <unordered_set>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/optim/optimizer.h>

#include <accelerate/accelerator.h>

#include "base/reversed.h"
#include "optim/optimizers/fused.h"
#include "train/session/session.h"
#include "train/step/plain_backwards.h"
#include "train/step/step_watch.h"

namespace accelerate::detail {

namespace {

void multiply_gradients(
    const torch::optim::Optimizer& optimizer,
    double factor) {
  const at::NoGradGuard no_grad;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (parameter.grad().defined()) parameter.grad().mul_(factor);
    }
  }
}

bool has_gradients(const torch::optim::Optimizer& optimizer) {
  return std::ranges::any_of(optimizer.param_groups(), [](const auto& group) {
    return std::ranges::any_of(group.params(), [](const auto& parameter) {
      return parameter.grad().defined();
    });
  });
}

// GradScaler::step() with the prepared optimizer's step. Returns whether it
// stepped, as far as the host knows.
bool step_if_finite(
    const GradScaler& scaler,
    PreparedOptimizer& optimizer,
    const std::function<at::Tensor()>& closure,
    const at::Tensor& divisor) {
  // The scaler refuses closures.
  if (scaler.is_enabled() && closure)
    return scaler.step(*optimizer.inner, closure);
  if (scaler.is_enabled()) {
    if (!scaler.is_unscaled(*optimizer.inner))
      scaler.unscale_(*optimizer.inner);
    if (can_defer(optimizer)) {
      take_deferred_step(optimizer, divisor);
      return true;
    }
    // A captured step does not read it where it is recorded (record_step()).
    std::optional<at::DisableRecordFunctionGuard> unobserved;
    if (optimizer.session->capture.run != nullptr) unobserved.emplace();
    if (scaler.found_inf(*optimizer.inner)) return false;
  }
  step_inner(optimizer, closure, divisor);
  return true;
}

std::vector<PreparedOptimizer*> waiting(Session& session) {
  std::vector<PreparedOptimizer*> found;
  for (const auto& optimizer : session.prepared.optimizers) {
    if (optimizer->inner != nullptr && is_accumulating(*optimizer))
      found.push_back(optimizer.get());
  }
  return found;
}

}  // namespace

void complete_gradients(Session& session) {
  if (!session.clock.sync_gradients()) return;
  const LibraryCall call;
  for (const auto& model : session.prepared.models) {
    const bool missed = model->watches.plain_backwards &&
        model->watches.plain_backwards->watch();
    if (missed && model->sync_gradients)
      model->strategies.after_plain_backward(/*sync_gradients=*/true);
    model->strategies.before_step();
  }
}

void settle_scale(Session& session) {
  if (!session.scaling.scaler || !session.scaling.scaler->is_enabled()) return;
  const GradScaler& scaler = *session.scaling.scaler;
  std::vector<PreparedOptimizer*> holding = waiting(session);
  std::erase_if(holding, [](const auto* optimizer) {
    return !has_gradients(*optimizer->inner);
  });
  for (const PreparedOptimizer* optimizer : holding)
    scaler.undo_unscale_(*optimizer->inner);
  if (!std::exchange(session.scaling.is_due, false)) return;
  if (holding.empty()) return scaler.update();
  const double before = scaler.get_scale();
  scaler.update();
  const double ratio = scaler.get_scale() / before;
  if (ratio == 1) return;
  for (const PreparedOptimizer* optimizer : holding)
    multiply_gradients(*optimizer->inner, ratio);
}

void unscale(Session& session, PreparedOptimizer& optimizer) {
  const LibraryCall call;
  complete_gradients(session);
  if (!session.scaling.scaler || optimizer.inner == nullptr ||
      !is_accumulating(optimizer))
    return;
  if (!session.scaling.scaler->is_unscaled(*optimizer.inner))
    session.scaling.scaler->unscale_(*optimizer.inner);
}

void unscale_parameters(
    Session& session,
    const std::vector<at::Tensor>& parameters) {
  complete_gradients(session);
  if (!session.scaling.scaler) return;
  std::unordered_set<const void*> chosen;
  for (const at::Tensor& parameter : parameters) {
    chosen.insert(parameter.unsafeGetTensorImpl());
    for (const auto& model : session.prepared.models) {
      if (const Parameter* row = model->table.find(parameter)) {
        chosen.insert(row->local.unsafeGetTensorImpl());
      }
    }
  }
  for (PreparedOptimizer* optimizer : waiting(session)) {
    for (const auto& group : optimizer->inner->param_groups()) {
      if (std::ranges::any_of(group.params(), [&](const auto& parameter) {
            return chosen.contains(parameter.unsafeGetTensorImpl());
          })) {
        unscale(session, *optimizer);
        break;
      }
    }
  }
}

at::Tensor scaled_step(
    Session& session,
    PreparedOptimizer& optimizer,
    const std::function<at::Tensor()>& closure,
    const at::Tensor& divisor) {
  if (!is_accumulating(optimizer)) {
    // Accelerator::backward() was not called since the last step, so gradients
    // are not scaled.
    optimizer.step_was_skipped = false;
    return step_inner(optimizer, closure, divisor);
  }
  optimizer.step_was_skipped =
      !step_if_finite(*session.scaling.scaler, optimizer, closure, divisor);
  use_gradients(optimizer);
  session.scaling.is_due = session.scaling.scaler->is_enabled();
  // With several optimizers the scale must not change between their steps.
  if (session.scaling.is_due && waiting(session).empty()) {
    session.scaling.scaler->update();
    session.scaling.is_due = false;
  }
  return {};
}

}  // namespace accelerate::detail

namespace accelerate {

void Accelerator::unscale_gradients() const {
  for (const auto& optimizer : session_->prepared.optimizers)
    detail::unscale(*session_, *optimizer);
}

void Accelerator::unscale_gradients(const Optimizer& optimizer) const {
  detail::unscale(*session_, *optimizer.prepared());
}

void Accelerator::unscale_gradients(
    const std::vector<Optimizer>& optimizers) const {
  for (const Optimizer& optimizer : optimizers) unscale_gradients(optimizer);
}

bool Accelerator::optimizer_step_was_skipped() const {
  detail::settle_steps(*session_);
  return std::ranges::any_of(
      session_->prepared.optimizers,
      [](const auto& optimizer) { return optimizer->step_was_skipped; });
}

}  // namespace accelerate

namespace accelerate::detail {

DeferredStep::DeferredStep(at::Tensor found_inf)
    : found_inf_(std::move(found_inf)), on_host_(found_inf_) {}

void DeferredStep::change(
    std::function<void()> make,
    std::function<void()> undo) {
  make();
  undo_.push_back(std::move(undo));
}

bool DeferredStep::was_skipped() {
  return *on_host_.get().const_data_ptr<float>() != 0;
}

void DeferredStep::undo() const {
  for (const auto& change : Reversed(undo_)) change();
}

bool can_defer(const PreparedOptimizer& optimizer) {
  const Session& session = *optimizer.session;
  return optimizer.fused_step != nullptr && !session.world.device().is_cpu() &&
      session.world.size() == 1 && session.capture.run == nullptr &&
      std::ranges::all_of(
             session.prepared.models,
             [](const auto& model) { return model->strategies.is_idle(); }) &&
      can_divide(*optimizer.inner);
}

void take_deferred_step(
    PreparedOptimizer& optimizer,
    const at::Tensor& divisor) {
  const auto step = std::make_shared<DeferredStep>(
      optimizer.session->scaling.scaler->found_inf_tensor(*optimizer.inner));
  const StepHooksScope scope(*step);
  step_inner(optimizer, nullptr, divisor);
  optimizer.deferred = step;
}

void settle_step(PreparedOptimizer& optimizer) {
  const auto step = std::exchange(optimizer.deferred, nullptr);
  if (step == nullptr) return;
  optimizer.step_was_skipped = step->was_skipped();
  if (optimizer.inner == nullptr) return;
  if (optimizer.step_was_skipped) {
    step->undo();
  } else {
    finish_step(optimizer);
  }
}

void settle_steps(const Session& session) {
  for (const auto& optimizer : session.prepared.optimizers)
    settle_step(*optimizer);
}

}  // namespace accelerate::detail
