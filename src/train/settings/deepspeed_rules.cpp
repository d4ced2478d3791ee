#include "train/settings/deepspeed_rules.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <torch/optim/optimizer.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "engines/deepspeed/deepspeed_batches.h"
#include "optim/made_from_deepspeed.h"
#include "train/optimizers/schedule_adapter.h"
#include "train/session/session.h"

namespace accelerate::detail {

namespace {

std::string complaint_of(std::string_view what, std::string_view function) {
  return format(
      "[train] the DeepSpeed configuration has the section \"{}\", but "
      "prepare() was given one made in code; make it by {}, or remove the "
      "section",
      what,
      function);
}

void require_sections(
    const TrainingRequest& training,
    const PrepareRequest& request) {
  std::vector<std::string> complaints;
  const auto is_own = [](const RequestedOptimizer& requested) {
    return dynamic_cast<const MadeFromDeepSpeed*>(requested.optimizer) ==
        nullptr;
  };
  const auto& optimizers = request.optimizers;
  if (training.optimizer &&
      std::any_of(optimizers.begin(), optimizers.end(), is_own)) {
    complaints.push_back(
        complaint_of("optimizer", "optimizer_from_deepspeed()"));
  }
  const auto& schedulers = request.schedulers;
  if (training.scheduler &&
      std::any_of(
          schedulers.begin(), schedulers.end(), [](const auto& scheduler) {
            return !scheduler.schedule->is_from_deepspeed();
          })) {
    complaints.push_back(
        complaint_of("scheduler", "scheduler_from_deepspeed()"));
  }
  if (!complaints.empty()) throw ConfigError(join(complaints, "\n"));
}

}  // namespace

void apply_deepspeed_rules(Session& session, const PrepareRequest& request) {
  TrainingRequest& training = session.layout.plan_request.training;
  if (training.engine != Engine::deepspeed) return;
  require_sections(training, request);
  const int num_ranks = session.layout.mesh.batch_count();
  DeepSpeedBatches batches{
      .micro_batches = session.layout.deepspeed_micro_batches,
      .gradient_accumulation_steps = session.clock.window(),
      .num_ranks = num_ranks};
  for (const RequestedLoader& loader : request.loaders) {
    // A batch sampler's batches differ in size.
    if (loader.batch_size == 0) continue;
    batches.micro_batches.push_back(
        loader.splits_batches.value_or(session.loading.config.split_batches)
            ? loader.batch_size / num_ranks
            : loader.batch_size);
  }
  training.deepspeed_config =
      fill_batch_sizes(training.deepspeed_config, batches);
  session.layout.deepspeed_micro_batches = batches.micro_batches;
}

}  // namespace accelerate::detail
