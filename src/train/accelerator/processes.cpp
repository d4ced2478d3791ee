#include <ATen/DeviceAccelerator.h>

#include <accelerate/accelerator.h>

#include "base/progress/progress_bar.h"
#include "comm/monitoring/public_call.h"
#include "config/environment.h"
#include "config/user_variables.h"
#include "train/capture/step_graphs.h"
#include "train/session/session.h"

namespace accelerate {

void detail::throw_released(std::string_view what) {
  throw ConfigError(format(
      "[train] this handle was released by free_memory() or end_training(); "
      "prepare {}",
      what));
}

ProgressOptions Accelerator::progress_options(
    const ProgressOptions& options) const {
  return detail::progress_options_of_rank(
      options,
      is_local_main_process(),
      detail::terminal_variables(detail::Environment::current()).has_utf8);
}

void Accelerator::free_memory() const {
  session_->services.checkpoints->saver.wait();
  session_->services.checkpoints->loaders.clear();
  session_->step.is_direct = false;
  for (const auto& captured : session_->capture.steps) {
    if (const auto graphs = captured.lock()) graphs->reset();
  }
  detail::settle_steps(*session_);
  // Optimizers may outlive their handles.
  for (const auto& optimizer : session_->prepared.optimizers) {
    if (optimizer->inner == nullptr) continue;
    for (const auto& model : session_->prepared.models)
      model->strategies.unpack_optimizer_state(*optimizer->inner);
  }
  for (const auto& model : session_->prepared.models) {
    model->runs_directly = false;
    model->watches.plain_backwards.reset();
    model->watches.module.reset();
    model->strategies.clear();
    model->table = {};
    model->module.reset();
    model->forward.layer_products.reset();
    model->forward.kept_casts.reset();
  }
  // Schedules refer to their optimizers, so they go first.
  for (const auto& scheduler : session_->prepared.schedulers) {
    scheduler->schedule = nullptr;
    scheduler->owner = nullptr;
  }
  for (const auto& optimizer : session_->prepared.optimizers) {
    optimizer->inner = nullptr;
    optimizer->owner = nullptr;
  }
  session_->clock.reset();
  session_->window.progress = {};
  session_->scaling.is_due = false;
  session_->loading.num_loaders = 0;
  ++session_->loading.num_releases;
  if (at::accelerator::isAccelerator(device().type()))
    at::accelerator::emptyCache();
}

void Accelerator::end_training() const {
  const detail::PublicCall call("end_training()");
  // The journal ends with the number of steps that were taken.
  detail::settle_steps(*session_);
  detail::report_settings_without_effect(*session_);
  session_->services.tracking->finish();
  session_->services.checkpoints->saver.wait();
  wait_for_everyone();
  free_memory();
}

}  // namespace accelerate
