#include "train/capture/captured_run.h"

#include <algorithm>

#include <ATen/Functions.h>

#include <accelerate/error.h>

#include "optim/optimizers/step_facts.h"
#include "train/capture/host_state.h"
#include "train/session/session.h"

namespace accelerate::detail {

CapturedRun::CapturedRun(at::Device device, std::size_t max_numbers) {
  work_.memory = at::zeros(
      {static_cast<std::int64_t>(max_numbers)},
      at::TensorOptions().dtype(at::kFloat).device(device));
}

void CapturedRun::repeat(std::function<void()> action) {
  auto& actions = has_skippable_step_ ? work_.after : work_.before;
  actions.push_back(std::move(action));
}

at::Tensor CapturedRun::number(
    const at::Device& device,
    std::function<double()> read) {
  const std::size_t index = work_.numbers->size();
  if (device != work_.memory.device()) {
    throw ConfigError(
        "[train] parameters of a captured step must be on one device, but are "
        "on several");
  }
  if (has_skippable_step_) {
    throw ConfigError(
        "[train] with fp16, a captured step must take at most one step of an "
        "optimizer, since the next one depends on whether it was skipped");
  }
  if (index >= static_cast<std::size_t>(work_.memory.numel())) {
    throw ConfigError(
        "[train] a captured step takes too many steps of optimizers");
  }
  work_.numbers->push_back(0);
  work_.before.push_back(
      [numbers = work_.numbers, index, read = std::move(read)] {
        (*numbers)[index] = static_cast<float>(read());
      });
  return work_.memory[static_cast<std::int64_t>(index)];
}

void CapturedRun::change(
    std::function<void()> make,
    std::function<void()> undo) {
  work_.before.push_back(std::move(make));
  undo_.push_back(std::move(undo));
}

void CapturedRun::begin_skippable_step(at::Tensor found_inf) {
  found_inf_ = std::move(found_inf);
  undo_.clear();
}

std::vector<std::function<void()>> CapturedRun::end_skippable_step() {
  found_inf_.reset();
  has_skippable_step_ = true;
  return std::exchange(undo_, {});
}

void CapturedRun::note_backward(const Session& session) {
  if (makes_gradients_) return;
  makes_gradients_ = std::ranges::none_of(
      parameters_of(session),
      [](const auto& parameter) { return parameter.grad().defined(); });
}

CapturedRun* recorded_run(const Session& session) {
  CapturedRun* const run = session.capture.run;
  return run != nullptr && run->is_recording() ? run : nullptr;
}

CapturedRunScope::CapturedRunScope(Session& session, CapturedRun& run)
    : session_(session) {
  session.capture.run = &run;
  // The shortcuts do not report what they do.
  session.step.is_direct = false;
}

CapturedRunScope::~CapturedRunScope() { session_.capture.run = nullptr; }

void record_step(
    PreparedOptimizer& optimizer,
    const LossClosure& closure,
    const at::Tensor& divisor) {
  const Session& session = *optimizer.session;
  CapturedRun& run = *session.capture.run;
  if (closure) {
    throw ConfigError(
        "[train] a step with a closure cannot be captured, since it may run "
        "the closure any number of times");
  }
  const bool is_fused = optimizer.fused_step != nullptr ||
      fused_step_of(*optimizer.inner) == nullptr;
  if (!is_fused || !can_be_recorded(*optimizer.inner)) {
    throw ConfigError(
        "[train] only steps of fused AdamW, Adam, SGD, Adagrad and RMSprop can "
        "be captured; others read their learning rate on the host");
  }
  at::Tensor found;
  if (session.scaling.scaler && session.scaling.scaler->is_enabled() &&
      is_accumulating(optimizer)) {
    if (!session.scaling.scaler->is_unscaled(*optimizer.inner))
      session.scaling.scaler->unscale_(*optimizer.inner);
    found = session.scaling.scaler->found_inf_tensor(*optimizer.inner);
    run.begin_skippable_step(found);
  }
  {
    const StepHooksScope scope(run);
    step_inner(optimizer, nullptr, divisor);
  }
  std::vector<std::function<void()>> undo;
  if (found.defined()) {
    undo = run.end_skippable_step();
    session.scaling.scaler->update();
  }
  use_gradients(optimizer);
  ++run.num_steps;
  run.repeat([&optimizer, found, undo = std::move(undo)] {
    use_gradients(optimizer);
    optimizer.step_was_skipped = found.defined() && found.item<float>() != 0;
    if (!optimizer.step_was_skipped) return finish_step(optimizer);
    for (const auto& change : undo) change();
  });
}

}  // namespace accelerate::detail
