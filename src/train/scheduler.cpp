#include <accelerate/scheduler.h>

#include <algorithm>

#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>

#include <accelerate/error.h>

#include "train/session.h"

namespace accelerate {

const void* detail::SchedulerReference::address() const {
  if (own != nullptr) return own;
  if (torch != nullptr) return torch;
  return plateau;
}

namespace {

using detail::PreparedScheduler;

void require_prepared(const PreparedScheduler& prepared) {
  if (prepared.inner.address() != nullptr) return;
  throw ConfigError(
      "[train] this handle was released by free_memory() or finish(); prepare "
      "the scheduler again");
}

// How many steps the schedule takes for this call.
int steps_due(const PreparedScheduler& prepared) {
  const detail::Session& session = *prepared.session;
  if (!session.scheduling.step_with_optimizer) return 1;
  if (!session.clock.sync_gradients()) return 0;
  if (std::any_of(
          prepared.optimizers.begin(),
          prepared.optimizers.end(),
          [](const auto* one) { return one->step_was_skipped; })) {
    return 0;
  }
  return session.scheduling.step_with_processes ? session.world.size() : 1;
}

bool has_ended(const PreparedScheduler& prepared) {
  if (prepared.inner.own == nullptr) return false;
  const auto total = prepared.inner.own->total_steps();
  return total && prepared.inner.own->step_count() >= *total;
}

}  // namespace

void detail::take_step(PreparedScheduler& prepared, const SchedulerStep& step) {
  if (prepared.inner.own == nullptr) {
    ++prepared.num_steps;
    if (step.has_metric) prepared.metrics.push_back(step.metric);
  }
  if (prepared.inner.own != nullptr) {
    step.has_metric ? prepared.inner.own->step(step.metric)
                    : prepared.inner.own->step();
  } else if (prepared.inner.torch != nullptr) {
    prepared.inner.torch->step();
  } else {
    prepared.inner.plateau->step(static_cast<float>(step.metric));
  }
  if (prepared.session->join) prepared.journal.push_back(step);
}

void Scheduler::step() const {
  require_prepared(*prepared_);
  if (prepared_->inner.plateau != nullptr) {
    throw ConfigError(
        "[train] ReduceLROnPlateauScheduler was stepped without a metric; call "
        "step(metric), with "
        "the same metric on every rank");
  }
  for (int left = steps_due(*prepared_); left > 0 && !has_ended(*prepared_);
       --left) {
    take_step(*prepared_, {});
  }
}

void Scheduler::step(double metric) const {
  require_prepared(*prepared_);
  if (prepared_->inner.torch != nullptr) {
    throw ConfigError(
        "[train] step() was given a metric, which only ReduceLROnPlateau uses; "
        "call step()");
  }
  if (steps_due(*prepared_) == 0) return;
  // Once, however many processes: the metric is one observation.
  take_step(*prepared_, {true, metric});
}

const std::vector<double>& Scheduler::get_last_lr() const {
  require_prepared(*prepared_);
  if (prepared_->inner.own == nullptr) {
    throw ConfigError(
        "[train] a LibTorch schedule does not tell its learning rates; read "
        "them from the "
        "optimizer's param_groups(), or use the schedule of accelerate::optim");
  }
  return prepared_->inner.own->get_last_lr();
}

torch::optim::LRScheduler& Scheduler::inner() const {
  require_prepared(*prepared_);
  if (prepared_->inner.torch == nullptr) {
    throw ConfigError(
        "[train] inner() is for schedules of torch::optim; this one is the "
        "variable given to "
        "prepare()");
  }
  return *prepared_->inner.torch;
}

}  // namespace accelerate
