#include "train/step/deferred_step.h"

#include <algorithm>
#include <memory>
#include <ranges>
#include <utility>

#include "optim/optimizers/fused.h"
#include "train/session/session.h"

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
  for (const auto& change : std::views::reverse(undo_)) change();
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
