#include <accelerate/gradient_state.h>

#include <accelerate/accelerator.h>
#include <accelerate/error.h>

#include "base/require.h"
#include "base/text/text.h"
#include "train/capture/captured_run.h"
#include "train/session/session.h"

namespace accelerate {

bool GradientState::sync_gradients() const {
  return session_->clock.sync_gradients();
}

int GradientState::num_steps() const { return session_->clock.window(); }

bool GradientState::sync_with_dataloader() const {
  return session_->options.accumulation.sync_with_dataloader;
}

bool GradientState::in_dataloader() const {
  return session_->active_loader() != nullptr;
}

bool GradientState::end_of_dataloader() const {
  const detail::LoaderProgress* loader = session_->active_loader();
  return loader != nullptr && loader->is_last_batch;
}

std::int64_t GradientState::remainder() const {
  const auto loader = active_dataloader();
  return loader ? loader->remainder : -1;
}

std::optional<ActiveDataLoader> GradientState::active_dataloader() const {
  const detail::LoaderProgress* loader = session_->active_loader();
  if (loader == nullptr) return std::nullopt;
  return ActiveDataLoader{
      .index = loader->index,
      .num_batches = loader->num_batches,
      .end_of_dataloader = loader->is_last_batch,
      .remainder = loader->is_last_batch ? loader->remainder : -1};
}

const std::optional<GradScaler>& GradientState::scaler() const {
  return session_->scaling.scaler;
}

void GradientState::set_sync_gradients(bool sync_gradients) const {
  detail::Session& session = *session_;
  session.clock.set_sync_gradients(sync_gradients);
  if (auto* const run = detail::recorded_run(session)) {
    run->repeat([&session, sync_gradients] {
      session.clock.set_sync_gradients(sync_gradients);
    });
  }
}

void GradientState::set_num_steps(int num_steps) const {
  detail::require_at_least(
      "train", "gradient_accumulation_steps", num_steps, 1);
  detail::StepClock& clock = session_->clock;
  if (!clock.sync_gradients()) {
    throw ConfigError(detail::format(
        "[train] set_num_steps({}) must not be called in the middle of a "
        "window of {}, whose losses were divided by that; call it after the "
        "window's step",
        num_steps,
        clock.window()));
  }
  session_->step.is_direct = false;
  clock.set_window(num_steps);
  session_->window.progress = {};
}

}  // namespace accelerate
