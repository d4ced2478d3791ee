#include <accelerate/accelerator.h>

#include <algorithm>
#include <memory>
#include <unordered_set>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/optim/optimizer.h>

#include <accelerate/error.h>

#include "base/text.h"
#include "comm/mesh.h"
#include "gate/watched_tensor.h"
#include "parallel/plan.h"
#include "params/materialize.h"
#include "pipeline/stages.h"
#include "precision/support.h"
#include "train/accelerator/freed_blocks.h"
#include "train/models/dispatched_models.h"
#include "train/optimizers/optimizer_watch.h"
#include "train/session.h"
#include "train/settings/deepspeed_rules.h"
#include "train/settings/ignored_options.h"

namespace accelerate {

namespace {

using detail::format;
using detail::ParallelPlan;
using detail::PreparedModel;
using detail::PrepareRequest;
using detail::Session;

template <class T>
std::size_t count_repeated(std::vector<T> items) {
  std::sort(items.begin(), items.end());
  return static_cast<std::size_t>(
      items.end() - std::unique(items.begin(), items.end()));
}

// Where the ranks have different stages, only a Pipeline divides a model.
void require_stage(
    const Session& session,
    const detail::RequestedModel& model,
    std::vector<std::string>& complaints) {
  const int num_stages = session.plan.degree(Axis::pipeline);
  const bool is_stage = dynamic_cast<const detail::PipelineStageModule*>(
                            model.module.get()) != nullptr;
  const bool is_trained = !model.options || !model.options->evaluation_mode;
  if (num_stages == 1 || is_stage || !is_trained) return;
  complaints.push_back(format(
      "[train] pipeline is {}, but argument {} of prepare() is a whole model; "
      "make a Pipeline of it (pipeline.h), set pipeline to 1, or, if it is "
      "never trained, give it evaluation_mode",
      num_stages,
      model.position));
}

// Reports a borrowed optimizer whose end its handle could not notice.
void require_watchable(
    const detail::RequestedOptimizer& requested,
    std::vector<std::string>& complaints) {
  if (requested.is_owned || detail::can_watch(*requested.optimizer)) return;
  complaints.push_back(format(
      "[train] argument {} of prepare() is an optimizer whose options are {}, "
      "a "
      "class of the program's own, so that its handle could not tell when it "
      "is destroyed; move it in as a std::unique_ptr, or share it as a "
      "std::shared_ptr",
      requested.position,
      detail::name_of_options(*requested.optimizer)));
}

// Throws for everything that prepare() refuses, before anything is changed.
void require_preparable(const Session& session, const PrepareRequest& request) {
  std::vector<std::string> complaints;
  std::vector<const void*> modules, optimizers, schedulers;
  for (const detail::RequestedModel& model : request.models) {
    if (!model.module) {
      complaints.push_back(format(
          "[train] argument {} of prepare() is an empty module holder, or a "
          "null pointer to a module; make the module first",
          model.position));
    } else {
      modules.push_back(model.module.get());
      require_stage(session, model, complaints);
    }
  }
  // A module is null after free_memory().
  for (const auto& model : session.models) {
    if (model->module) modules.push_back(model->module.get());
  }
  for (const detail::RequestedOptimizer& requested : request.optimizers) {
    optimizers.push_back(requested.optimizer);
    require_watchable(requested, complaints);
  }
  for (const auto& optimizer : session.optimizers) {
    if (optimizer->inner != nullptr) optimizers.push_back(optimizer->inner);
  }
  for (const auto& scheduler : request.schedulers)
    schedulers.push_back(scheduler.schedule->address());
  for (const auto& scheduler : session.schedulers) {
    if (scheduler->schedule)
      schedulers.push_back(scheduler->schedule->address());
  }
  if (count_repeated(modules) + count_repeated(optimizers) +
          count_repeated(schedulers) >
      0) {
    complaints.emplace_back(
        "[train] prepare() was given something twice, or something prepared "
        "before; keep the first handle");
  }
  if (!complaints.empty()) throw ConfigError(detail::join(complaints, "\n"));
}

std::vector<at::Tensor> tensors_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> tensors = module.parameters();
  for (const at::Tensor& buffer : module.buffers()) tensors.push_back(buffer);
  std::erase_if(tensors, [](const at::Tensor& t) { return !t.defined(); });
  return tensors;
}

bool is_empty(const at::Tensor& tensor) { return tensor.is_meta(); }

// LibTorch's pointers to accumulators are shared or, in newer versions,
// intrusive.
template <class Pointer>
auto weak(const Pointer& pointer) {
  if constexpr (requires { std::weak_ptr(pointer); }) {
    return std::weak_ptr(pointer);
  } else {
    return c10::weak_intrusive_ptr<typename Pointer::element_type>(pointer);
  }
}

// Moves a tensor in place, so that every handle sees it, as Module::to() does;
// that refuses some devices.
void move_tensor(at::Tensor tensor, const at::Device& device) {
  const at::Tensor moved = tensor.detach().to(device);
  if (at::_has_compatible_shallow_copy_type(tensor, moved))
    return tensor.set_data(moved);
  tensor.unsafeGetTensorImpl()->shallow_copy_from(moved.getIntrusivePtr());
  // The gradient accumulator remembers the device, so a new one is made.
  namespace impl = torch::autograd::impl;
  using Accumulator = decltype(impl::try_get_grad_accumulator(tensor));
  if (tensor.requires_grad())
    impl::set_grad_accumulator(tensor, weak(Accumulator()));
}

// Tensors without memory are skipped; they get it on the right device later.
void move_to_device(torch::nn::Module& module, const at::Device& device) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& tensor : tensors_of(module)) {
    if (!is_empty(tensor) && tensor.device() != device)
      move_tensor(tensor, device);
  }
}

// Where the module's tensors are; `otherwise` if it has none with memory.
at::Device device_of(
    const torch::nn::Module& module,
    const at::Device& otherwise) {
  for (const at::Tensor& tensor : tensors_of(module)) {
    if (!is_empty(tensor)) return tensor.device();
  }
  return otherwise;
}

// True if the rank whose initial values this model (or this stage of it) takes
// has none. With `keeps_own` each rank takes its own. Collective.
bool lacks_values(
    const Mesh& mesh,
    const torch::nn::Module& module,
    bool keeps_own) {
  const auto tensors = tensors_of(module);
  const bool mine = std::any_of(tensors.begin(), tensors.end(), is_empty);
  const Group group = detail::replica_group(detail::Layout(), mesh);
  const auto all = group.all_gather_bytes(mine ? "empty" : "full");
  const int first = group.world_ranks()[0];
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    if (all[0] == "full") {
      if (!keeps_own) continue;
      throw ConfigError(format(
          "[train] rank {} built its model without values, and with "
          "evaluation_mode it does not get those of rank {}; build it with "
          "values on all ranks, or unset evaluation_mode",
          group.world_ranks()[rank],
          first));
    }
    throw ConfigError(format(
        "[train] rank {} built its model inside init_empty_weights() and rank "
        "{} did not, but all begin with rank {}'s values; build it with values "
        "on rank {}, or without on all",
        first,
        group.world_ranks()[rank],
        first,
        first));
  }
  return all[0] == "empty";
}

// Gives meta tensors memory unless a strategy accepts them empty.
void give_memory(PreparedModel& model) {
  const at::NoGradGuard no_grad;
  const auto tensors = model.strategies.traits().takes_empty
      ? model.module->buffers()
      : tensors_of(*model.module);
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || !is_empty(tensor)) continue;
    detail::materialize(tensor, model.device);
    tensor.detach().zero_();
  }
}

// Reports settings that cannot differ between models, which share a step.
void require_same_step(
    const Session& session,
    const detail::StepRequest& step,
    std::vector<std::string>& complaints) {
  const auto steps = step.gradient_accumulation_steps;
  if (steps && *steps != session.clock.window()) {
    complaints.push_back(format(
        "gradient_accumulation_steps is {}, and {} for the other models, which "
        "step together with this one; leave it out",
        *steps,
        session.clock.window()));
  }
  if (step.gradient_clipping && !step.clips_by_default &&
      step.gradient_clipping != session.max_gradient_norm) {
    complaints.push_back(format(
        "gradient_clipping is {}, but applies to all models; give it in "
        "AcceleratorOptions, or call clip_grad_norm_()",
        *step.gradient_clipping));
  }
}

// A model's plan, and the settings among its own options that do nothing.
struct ModelPlan {
  ParallelPlan plan;
  bool device_placement = true;
  bool evaluation_mode = false;
  std::vector<detail::IgnoredSetting> ignored = {};
};

bool asks_for_plan(const ModelOptions& options) {
  return options.replicate || options.shard || options.fully_sharded ||
      options.deepspeed || options.replicate_options ||
      options.activation_checkpointing || options.master_weights ||
      options.parallelize_plan;
}

// Reports a model that would train on another device than the ranks'.
void require_placed(
    const Session& session,
    const torch::nn::Module& module,
    const ModelPlan& plan,
    std::vector<std::string>& complaints) {
  if (plan.device_placement || plan.evaluation_mode ||
      session.world.size() == 1 || detail::is_dispatched(module)) {
    return;
  }
  for (const at::Tensor& tensor : tensors_of(module)) {
    if (is_empty(tensor) || tensor.device() == session.world.device()) continue;
    complaints.push_back(format(
        "device_placement = false leaves it on {}, but ranks average gradients "
        "on {}; move it there, set device_placement, or, if it is never "
        "trained, evaluation_mode",
        tensor.device().str(),
        session.world.device().str()));
    return;
  }
}

detail::PlanRequest request_of(
    const Session& session,
    const ModelOptions& options) {
  detail::PlanRequest request = session.plan_request;
  request.training = detail::read_model_request(
      options, session.request_sources, session.plan.degrees);
  // Models split alike, also one whose options name another engine.
  request.training.infers_plan =
      request.training.infers_plan || session.plan_request.training.infers_plan;
  request.training.divides_sequences = request.training.divides_sequences ||
      (session.plan_request.training.divides_sequences &&
       !request.training.parallelize_plan);
  request.replicate_is_inherited = !options.replicate_options;
  if (options.replicate_options) request.replicate = *options.replicate_options;
  if (options.master_weights) request.master_weights = *options.master_weights;
  return request;
}

// `options` is null for a model without options of its own.
void read_model_options(
    const Session& session,
    const ModelOptions* options,
    ModelPlan& plan,
    std::vector<std::string>& complaints) {
  plan.device_placement = session.device_placement;
  if (options == nullptr) return;
  plan.device_placement =
      options->device_placement.value_or(session.device_placement);
  plan.evaluation_mode = options->evaluation_mode;
  if (!asks_for_plan(*options)) return;
  if (options->evaluation_mode) {
    complaints.emplace_back(
        "evaluation_mode prepares a model that is neither replicated nor "
        "sharded, but options for that were given; leave them out, or "
        "evaluation_mode");
    return;
  }
  try {
    const detail::PlanRequest own = request_of(session, *options);
    plan.plan = detail::make_plan(own);
    plan.ignored = own.training.ignored;
    plan.ignored.insert(
        plan.ignored.end(), plan.plan.ignored.begin(), plan.plan.ignored.end());
    if (options->replicate_options) {
      for (auto& setting :
           detail::options_without_effect(*options->replicate_options))
        plan.ignored.push_back(std::move(setting));
    }
    require_same_step(session, own.training.step, complaints);
  } catch (const ConfigError& error) {
    complaints.emplace_back(error.what());
  }
}

// Makes one plan per model; throws one error for all of them.
std::vector<ModelPlan> plans_of(
    const Session& session,
    const PrepareRequest& request) {
  std::vector<ModelPlan> plans;
  std::vector<std::string> complaints;
  for (const detail::RequestedModel& model : request.models) {
    ModelPlan& plan = plans.emplace_back(ModelPlan{session.plan});
    std::vector<std::string> found;
    read_model_options(session, model.options.get(), plan, found);
    require_placed(session, *model.module, plan, found);
    if (!plan.evaluation_mode) {
      for (std::string& complaint : detail::complaints_of_dispatched(
               *model.module, plan.plan, session.world))
        found.push_back(std::move(complaint));
    }
    if (found.empty()) continue;
    complaints.push_back(format(
        "[train] the options of model {} of prepare() are not valid:\n{}",
        plans.size(),
        detail::join(found, "\n")));
  }
  if (!complaints.empty()) throw ConfigError(detail::join(complaints, "\n"));
  return plans;
}

const Mesh& mesh_of(Session& session, const ParallelPlan& plan) {
  if (detail::degrees_of(session.mesh) == plan.degrees) return session.mesh;
  for (const Mesh& mesh : session.other_meshes) {
    if (detail::degrees_of(mesh) == plan.degrees) return mesh;
  }
  return session.other_meshes.emplace_back(
      detail::with_degrees(session.mesh, plan.degrees));
}

std::unique_ptr<PreparedModel> make_prepared_model(
    Session& session,
    const std::shared_ptr<torch::nn::Module>& module,
    const ModelPlan& chosen) {
  const ParallelPlan& plan = chosen.plan;
  auto model = std::make_unique<PreparedModel>(PreparedModel{
      .session = &session, .module = module, .mesh = mesh_of(session, plan)});
  model->reads_on_rank_0 = plan.reads_on_rank_0;
  model->evaluation_mode = chosen.evaluation_mode;
  model->awaits_values =
      lacks_values(model->mesh, *module, chosen.evaluation_mode);
  const bool moves = chosen.device_placement && !detail::is_dispatched(*module);
  model->device = moves ? session.world.device()
                        : device_of(*module, session.world.device());
  if (moves) move_to_device(*module, model->device);
  model->table =
      detail::ParameterTable(*module, {}, &detail::is_offloaded_or_coded);
  if (session.autocast.enabled) {
    model->autocast_dtype = detail::autocast_dtype(session.precision);
  }
  detail::ParallelPlan own_plan = plan;
  own_plan.techniques.shard.allocator_keeps_blocks =
      plan.keeps_freed_blocks && detail::can_keep_freed_blocks();
  if (const auto* stage =
          dynamic_cast<const detail::PipelineStageModule*>(module.get()))
    own_plan.techniques.whole_model = stage->whole_model;
  if (!chosen.evaluation_mode)
    model->strategies = detail::make_strategies(model->mesh, own_plan, *module);
  give_memory(*model);
  model->strategies.prepare(*module, model->table);
  if (plan.keeps_freed_blocks && !chosen.evaluation_mode) {
    std::int64_t gradient_bytes = 0;
    for (const detail::Parameter* row : model->table.trainable())
      gradient_bytes += static_cast<std::int64_t>(row->local.nbytes());
    model->freed_blocks = detail::keep_freed_blocks(gradient_bytes);
  }
  return model;
}

// Makes the optimizer step on what the models' strategies keep, and notices its
// end.
detail::PreparedOptimizer& make_prepared_optimizer(
    Session& session,
    torch::optim::Optimizer& optimizer) {
  for (const auto& model : session.models)
    model->strategies.bind(optimizer, model->table);
  detail::PreparedOptimizer& prepared = *session.optimizers.emplace_back(
      std::make_unique<detail::PreparedOptimizer>(detail::PreparedOptimizer{
          .session = &session,
          .inner = &optimizer,
          .num_backwards_used = session.step.num_backwards}));
  session.step_counts->add(prepared.num_steps);
  prepared.watch = detail::watch_optimizer(optimizer, [&prepared] {
    prepared.was_destroyed = std::exchange(prepared.inner, nullptr) != nullptr;
  });
  return prepared;
}

// Binds optimizers that were prepared before this model.
void bind_earlier_optimizers(const Session& session, PreparedModel& model) {
  for (const auto& optimizer : session.optimizers) {
    if (optimizer->inner != nullptr)
      model.strategies.bind(*optimizer->inner, model.table);
  }
}

// The schedule's own optimizer if it is known and prepared, else all.
std::vector<const detail::PreparedOptimizer*> optimizers_of(
    const Session& session,
    const detail::SchedulerReference& scheduler) {
  std::vector<const detail::PreparedOptimizer*> all, own;
  for (const auto& optimizer : session.optimizers) {
    if (optimizer->inner == nullptr) continue;
    all.push_back(optimizer.get());
    if (scheduler.schedule->optimizer() == optimizer->inner)
      own.push_back(optimizer.get());
  }
  return own.empty() ? all : own;
}

}  // namespace

void detail::PrepareRequest::add(
    std::shared_ptr<torch::nn::Module> module,
    const ModelOptions* options) {
  models.push_back(
      {std::move(module),
       options == nullptr ? nullptr
                          : std::make_shared<const ModelOptions>(*options),
       num_items});
}

void detail::throw_empty_pointer(const char* kind, int position) {
  throw ConfigError(format(
      "[train] argument {} of prepare() is an empty pointer to {}",
      position,
      kind));
}

void detail::keep_alive(
    PreparedOptimizer& prepared,
    std::shared_ptr<void> owner) {
  prepared.owner = std::move(owner);
}

void detail::keep_alive(
    PreparedScheduler& prepared,
    std::shared_ptr<void> owner) {
  prepared.owner = std::move(owner);
}

detail::PrepareResult Accelerator::apply(const PrepareRequest& request) const {
  Session& session = *session_;
  session.step.is_direct = false;
  require_preparable(session, request);
  detail::apply_deepspeed_rules(session, request);
  const auto plans = plans_of(session, request);
  // A rank that trains may pass by a call in which others wait for it.
  if (!request.models.empty()) session.agreement->start_detector();
  detail::PrepareResult result;
  result.loader_context = [this] { return loader_context(); };
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (request.models[i].options)
      detail::note_ignored_settings(session, plans[i].ignored);
    session.models.push_back(
        make_prepared_model(session, request.models[i].module, plans[i]));
    bind_earlier_optimizers(session, *session.models.back());
    result.models.emplace_back(session_, session.models.back().get());
  }
  for (const detail::RequestedOptimizer& requested : request.optimizers) {
    detail::PreparedOptimizer& prepared =
        make_prepared_optimizer(session, *requested.optimizer);
    result.optimizers.emplace_back(session_, &prepared);
  }
  for (const detail::SchedulerReference& scheduler : request.schedulers) {
    if (scheduler.schedule->is_from_megatron_lm())
      session.report.has_engine_schedule = true;
    session.schedulers.push_back(
        std::make_unique<detail::PreparedScheduler>(detail::PreparedScheduler{
            .session = &session,
            .schedule = scheduler.schedule,
            .optimizers = optimizers_of(session, scheduler)}));
    result.schedulers.emplace_back(session_, session.schedulers.back().get());
  }
  return result;
}

FullParameters Accelerator::unshard_parameters(
    detail::PreparedModel& model) const {
  model.awaits_values = false;
  return FullParameters(session_, model.strategies.unshard_parameters());
}

}  // namespace accelerate
