#include <accelerate/scheduler.h>

#include <algorithm>

#include <accelerate/error.h>

#include "train/session.h"

namespace accelerate {

namespace {

using detail::PreparedScheduler;

detail::ScheduleAdapter& schedule_of(const PreparedScheduler& prepared) {
  // A schedule refers to its optimizer.
  if (!prepared.optimizers.empty() &&
      std::all_of(
          prepared.optimizers.begin(),
          prepared.optimizers.end(),
          [](const auto* optimizer) { return optimizer->was_destroyed; })) {
    throw ConfigError(
        "[train] the optimizer of this schedule was destroyed; keep it as long "
        "as the schedule is used");
  }
  if (prepared.schedule) return *prepared.schedule;
  throw ConfigError(
      "[train] this handle was released by free_memory() or finish(); prepare "
      "the scheduler again");
}

// Number of steps that the schedule takes for this call.
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

}  // namespace

void detail::take_step(PreparedScheduler& prepared, const SchedulerStep& step) {
  prepared.schedule->step(step);
  if (prepared.session->join.round) prepared.journal.push_back(step);
}

void Scheduler::step() const {
  const detail::ScheduleAdapter& schedule = schedule_of(*prepared_);
  schedule.require_accepts(/*has_metric=*/false);
  for (int left = steps_due(*prepared_); left > 0 && !schedule.has_ended();
       --left) {
    take_step(*prepared_, {});
  }
}

void Scheduler::step(double metric) const {
  schedule_of(*prepared_).require_accepts(/*has_metric=*/true);
  if (steps_due(*prepared_) == 0) return;
  // One step for any number of processes: the metric is one observation.
  take_step(*prepared_, {true, metric});
}

const std::vector<double>& Scheduler::get_last_lr() const {
  return schedule_of(*prepared_).last_lrs();
}

torch::optim::LRScheduler& Scheduler::inner() const {
  return schedule_of(*prepared_).torch_schedule();
}

}  // namespace accelerate
