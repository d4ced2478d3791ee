#include "train/models/model_plans.h"

#include <algorithm>
#include <utility>

#include <torch/nn/module.h>

#include <accelerate/accelerator.h>
#include <accelerate/error.h>
#include <accelerate/module_tensors.h>

#include "base/require.h"
#include "base/text/text.h"
#include "big_model/model/module_tensor.h"
#include "gate/watched_tensor.h"
#include "train/models/model_values.h"
#include "train/session/session.h"
#include "train/settings/ignored_options.h"

namespace accelerate::detail {

namespace {

// Reports settings that cannot differ between models, which share a step.
void require_same_step(
    const Session& session,
    const StepRequest& step,
    std::vector<std::string>& complaints) {
  const auto steps = step.gradient_accumulation_steps;
  if (steps && *steps != session.clock.window()) {
    complaints.push_back(format(
        "gradient_accumulation_steps is {}, but {} for the other models, which "
        "step together with this one; leave it out",
        *steps,
        session.clock.window()));
  }
  if (step.gradient_clipping && !step.clips_by_default &&
      step.gradient_clipping != session.scaling.max_gradient_norm) {
    complaints.push_back(format(
        "gradient_clipping is {}, but applies to all models; set it in "
        "AcceleratorOptions, or call clip_grad_norm_()",
        *step.gradient_clipping));
  }
}

bool asks_for_plan(const ModelOptions& options) {
  return options.replicate || options.shard || options.fully_sharded ||
      options.deepspeed || options.replicate_options ||
      options.activation_checkpointing || options.master_weights ||
      options.parallelize_plan;
}

// Reports a model that would train on a device other than the ranks'.
void require_placed(
    const Session& session,
    const torch::nn::Module& module,
    const ModelPlan& plan,
    std::vector<std::string>& complaints) {
  if (plan.device_placement || plan.evaluation_mode ||
      session.world.size() == 1 || is_dispatched(module)) {
    return;
  }
  for (const at::Tensor& tensor : parameters_and_buffers(module)) {
    if (has_no_values(tensor) || tensor.device() == session.world.device())
      continue;
    complaints.push_back(format(
        "device_placement = false leaves it on {}, but ranks average gradients "
        "on {}; move it there, set device_placement, or, if it is never "
        "trained, evaluation_mode",
        tensor.device().str(),
        session.world.device().str()));
    return;
  }
}

PlanRequest request_of(const Session& session, const ModelOptions& options) {
  PlanRequest request = session.layout.plan_request;
  request.training = read_model_request(
      options,
      session.layout.request_sources,
      session.layout.plan.degrees,
      session.layout.plan_request.training.shard_degree_is_given);
  // Models are split alike, even one whose options name another engine.
  request.training.infers_plan = request.training.infers_plan ||
      session.layout.plan_request.training.infers_plan;
  request.training.divides_sequences = request.training.divides_sequences ||
      (session.layout.plan_request.training.divides_sequences &&
       !request.training.parallelize_plan);
  request.replicate_is_inherited = !options.replicate_options;
  if (options.replicate_options) request.replicate = *options.replicate_options;
  if (options.master_weights) request.master_weights = *options.master_weights;
  return request;
}

// `options` is null for a model without its own options.
void read_model_options(
    const Session& session,
    const ModelOptions* options,
    ModelPlan& plan,
    std::vector<std::string>& complaints) {
  plan.device_placement = session.loading.device_placement;
  if (options == nullptr) return;
  plan.device_placement =
      options->device_placement.value_or(session.loading.device_placement);
  plan.evaluation_mode = options->evaluation_mode;
  if (!asks_for_plan(*options)) return;
  if (options->evaluation_mode) {
    complaints.emplace_back(
        "evaluation_mode prepares a model that is neither replicated nor "
        "sharded, but options for that are set; leave them out, or "
        "evaluation_mode");
    return;
  }
  attempt(complaints, [&] {
    const PlanRequest own = request_of(session, *options);
    plan.plan = make_plan(own);
    plan.ignored = own.training.ignored;
    plan.ignored.insert(
        plan.ignored.end(), plan.plan.ignored.begin(), plan.plan.ignored.end());
    if (options->replicate_options) {
      for (auto& setting : options_without_effect(*options->replicate_options))
        plan.ignored.push_back(std::move(setting));
    }
    require_same_step(session, own.training.step, complaints);
  });
}

}  // namespace

std::vector<ModelPlan> plans_of(
    const Session& session,
    const PrepareRequest& request) {
  std::vector<ModelPlan> plans;
  std::vector<std::string> complaints;
  for (const RequestedModel& model : request.models) {
    ModelPlan& plan = plans.emplace_back(ModelPlan{session.layout.plan});
    std::vector<std::string> found;
    read_model_options(session, model.options.get(), plan, found);
    require_placed(session, *model.module, plan, found);
    if (!plan.evaluation_mode) {
      for (std::string& complaint :
           complaints_of_dispatched(*model.module, plan.plan, session.world))
        found.push_back(std::move(complaint));
    }
    if (found.empty()) continue;
    complaints.push_back(format(
        "[train] the options of model {} of prepare() are invalid:\n{}",
        plans.size(),
        join(found, "\n")));
  }
  if (!complaints.empty()) throw ConfigError(join(complaints, "\n"));
  return plans;
}

}  // namespace accelerate::detail

namespace accelerate {

namespace detail {

bool is_dispatched(const torch::nn::Module& module) {
  const auto is_placed = [](const at::Tensor& tensor) {
    return tensor.defined() && num_places_of(tensor) > 0;
  };
  const auto parameters = module.parameters();
  const auto buffers = module.buffers();
  return std::ranges::any_of(parameters, is_placed) ||
      std::ranges::any_of(buffers, is_placed);
}

std::vector<std::string> complaints_of_dispatched(
    const torch::nn::Module& module,
    const ParallelPlan& plan,
    const World& world) {
  std::vector<std::string> trained, elsewhere;
  bool has_offloaded = false;
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& tensor = item.value();
    if (!tensor.defined()) continue;
    const bool is_away = is_offloaded_or_coded(tensor);
    has_offloaded = has_offloaded || is_away;
    if (!tensor.requires_grad()) continue;
    if (is_away) trained.push_back(item.key());
    if (tensor.device() != world.device()) elsewhere.push_back(item.key());
  }
  std::vector<std::string> complaints;
  if (!trained.empty()) {
    complaints.push_back(format(
        "{} are offloaded, and an optimizer cannot change offloaded weights: "
        "freeze them (requires_grad_(false)), or keep their modules in memory "
        "(device_map)",
        name_list(trained)));
  }
  if (world.size() > 1 && !elsewhere.empty() && is_dispatched(module)) {
    complaints.push_back(format(
        "its device map puts {} on other devices than {}, where ranks average "
        "gradients; give each rank a map with its own device, or train with "
        "one process",
        name_list(elsewhere),
        world.device().str()));
  }
  for (const Axis axis : {Axis::shard, Axis::tensor, Axis::pipeline}) {
    if (!has_offloaded || plan.degree(axis) == 1) continue;
    complaints.push_back(format(
        "it has offloaded or quantised weights, which {} = {} would have to "
        "split; replicate it instead",
        name_of(axis),
        plan.degree(axis)));
  }
  return complaints;
}

}  // namespace detail

}  // namespace accelerate
