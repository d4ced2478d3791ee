#include "train/models/model_plans.h"

#include <algorithm>
#include <string>
#include <vector>

#include <accelerate/accelerator.h>
#include <accelerate/error.h>

#include "base/text/text.h"
#include "pipeline/stages.h"
#include "train/optimizers/optimizer_watch.h"
#include "train/optimizers/schedule_adapter.h"
#include "train/session/prepared.h"

namespace accelerate::detail {

namespace {

template <class T>
std::size_t count_repeated(std::vector<T> items) {
  std::ranges::sort(items);
  return static_cast<std::size_t>(
      items.end() - std::unique(items.begin(), items.end()));
}

// If the ranks have different stages, only a Pipeline splits a model.
void require_stage(
    const ParallelPlan& plan,
    const RequestedModel& model,
    std::vector<std::string>& complaints) {
  const int num_stages = plan.degree(Axis::pipeline);
  const bool is_stage =
      dynamic_cast<const PipelineStageModule*>(model.module.get()) != nullptr;
  const bool is_trained = !model.options || !model.options->evaluation_mode;
  if (num_stages == 1 || is_stage || !is_trained) return;
  complaints.push_back(format(
      "[train] pipeline is {}, but argument {} of prepare() is a whole model; "
      "make a Pipeline of it (pipeline.h), set pipeline to 1, or, if it is "
      "never trained, set evaluation_mode",
      num_stages,
      model.position));
}

// Reports a borrowed optimizer whose destruction its handle could not notice.
void require_watchable(
    const RequestedOptimizer& requested,
    std::vector<std::string>& complaints) {
  if (requested.is_owned || can_watch(*requested.optimizer)) return;
  complaints.push_back(format(
      "[train] argument {} of prepare() is an optimizer whose options are {}, "
      "a class of the program's own, so its handle could not notice its "
      "destruction; move it in as a std::unique_ptr, or share it as a "
      "std::shared_ptr",
      requested.position,
      name_of_options(*requested.optimizer)));
}

}  // namespace

void require_preparable(
    const ParallelPlan& plan,
    const PreparedItems& prepared,
    const PrepareRequest& request) {
  std::vector<std::string> complaints;
  std::vector<const void*> modules, optimizers, schedulers;
  for (const RequestedModel& model : request.models) {
    if (!model.module) {
      complaints.push_back(format(
          "[train] argument {} of prepare() must be a module, but is an empty "
          "holder or a null pointer; make the module first",
          model.position));
    } else {
      modules.push_back(model.module.get());
      require_stage(plan, model, complaints);
    }
  }
  // A module is null after free_memory().
  for (const auto& model : prepared.models) {
    if (model->module) modules.push_back(model->module.get());
  }
  for (const RequestedOptimizer& requested : request.optimizers) {
    optimizers.push_back(requested.optimizer);
    require_watchable(requested, complaints);
  }
  for (const auto& optimizer : prepared.optimizers) {
    if (optimizer->inner != nullptr) optimizers.push_back(optimizer->inner);
  }
  for (const auto& scheduler : request.schedulers)
    schedulers.push_back(scheduler.schedule->address());
  for (const auto& scheduler : prepared.schedulers) {
    if (scheduler->schedule)
      schedulers.push_back(scheduler->schedule->address());
  }
  if (count_repeated(modules) + count_repeated(optimizers) +
          count_repeated(schedulers) >
      0) {
    complaints.emplace_back(
        "[train] arguments of prepare() must not be repeated or already "
        "prepared, but one is; keep the first handle");
  }
  if (!complaints.empty()) throw ConfigError(join(complaints, "\n"));
}

}  // namespace accelerate::detail
