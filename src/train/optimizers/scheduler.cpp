#include <accelerate/scheduler.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include <torch/optim/optimizer.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "train/capture/captured_run.h"
#include "train/optimizers/schedule_adapter.h"
#include "train/session/session.h"

namespace accelerate {

namespace {

using detail::PreparedScheduler;

detail::ScheduleAdapter& adapter_of(const PreparedScheduler& prepared) {
  // A schedule refers to its optimizer.
  if (!prepared.optimizers.empty() &&
      std::ranges::all_of(prepared.optimizers, [](const auto* optimizer) {
        return optimizer->was_destroyed;
      })) {
    throw ConfigError(
        "[train] the optimizer of this schedule was destroyed; keep it as long "
        "as the schedule is used");
  }
  if (!prepared.schedule) detail::throw_released("the scheduler again");
  return *prepared.schedule;
}

// Number of steps that the schedule takes on this call.
int steps_due(const PreparedScheduler& prepared) {
  const detail::Session& session = *prepared.session;
  if (!session.options.scheduling.step_with_optimizer) return 1;
  if (!session.clock.sync_gradients()) return 0;
  detail::settle_steps(*prepared.session);
  if (std::ranges::any_of(prepared.optimizers, [](const auto* one) {
        return one->step_was_skipped;
      })) {
    return 0;
  }
  const bool counts_processes =
      session.options.scheduling.step_with_processes &&
      !session.loading.config.split_batches &&
      !prepared.schedule->is_from_megatron_lm();
  return counts_processes ? session.world.size() : 1;
}

// Leaves the step to replays while a step is recorded; returns whether it is.
template <class Step>
bool is_left_to_replays(const PreparedScheduler& prepared, Step&& step) {
  detail::CapturedRun* const run = detail::recorded_run(*prepared.session);
  if (run != nullptr) run->repeat(std::forward<Step>(step));
  return run != nullptr;
}

// The learning rates of the optimizer that a schedule must be changing, since
// no other one is prepared.
std::vector<double> rates_of_only_optimizer(const PreparedScheduler& prepared) {
  std::vector<double> rates;
  std::size_t num_optimizers = 0;
  for (const auto& optimizer : prepared.session->prepared.optimizers) {
    if (optimizer->inner == nullptr) continue;
    ++num_optimizers;
    for (const auto& group : optimizer->inner->param_groups())
      rates.push_back(group.options().get_lr());
  }
  if (num_optimizers == 1) return rates;
  throw ConfigError(detail::format(
      "[train] a LibTorch ReduceLROnPlateauScheduler does not reveal which of "
      "{} prepared optimizers it changes; read the optimizer's "
      "learning_rate(), or use the schedule of accelerate::optim",
      num_optimizers));
}

}  // namespace

void detail::take_step(PreparedScheduler& prepared, const SchedulerStep& step) {
  prepared.schedule->step(step);
  if (prepared.session->join.round) prepared.journal.push_back(step);
}

void Scheduler::step() const {
  const detail::ScheduleAdapter& schedule = adapter_of(*prepared_);
  schedule.require_accepts(/*has_metric=*/false);
  if (is_left_to_replays(*prepared_, [self = *this] { self.step(); })) return;
  for (int left = steps_due(*prepared_); left > 0 && !schedule.has_ended();
       --left) {
    take_step(*prepared_, {});
  }
}

void Scheduler::step(double metric) const {
  adapter_of(*prepared_).require_accepts(/*has_metric=*/true);
  if (detail::recorded_run(*prepared_->session) != nullptr) {
    throw ConfigError(
        "[train] a schedule's step with a metric cannot be captured, since the "
        "metric is a number on the host; step the schedule "
        "after the captured step");
  }
  if (steps_due(*prepared_) == 0) return;
  // One step for any number of processes, since the metric is a single
  // observation.
  take_step(*prepared_, {true, metric});
}

std::vector<double> Scheduler::get_last_lr() const {
  if (auto rates = adapter_of(*prepared_).last_lrs()) return *std::move(rates);
  return rates_of_only_optimizer(*prepared_);
}

double Scheduler::learning_rate() const {
  const std::vector<double> rates = get_last_lr();
  if (rates.empty()) {
    throw ConfigError(
        "[train] the schedule's optimizer has no parameter groups, so no "
        "learning rate");
  }
  return rates.front();
}

torch::optim::LRScheduler& Scheduler::inner() const {
  return adapter_of(*prepared_).torch_schedule();
}

}  // namespace accelerate
