#include <accelerate/accelerator.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <torch/optim/optimizer.h>

#include <accelerate/detail/prepare_items.h>
#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/mesh.h"
#include "comm/monitoring/public_call.h"
#include "engines/deepspeed/deepspeed_batches.h"
#include "exported/load/export_check.h"
#include "gate/watched_tensor.h"
#include "optim/made_from_engine.h"
#include "parallel/plan/plan.h"
#include "pipeline/stages.h"
#include "precision/support.h"
#include "train/memory/freed_blocks.h"
#include "train/models/model_plans.h"
#include "train/models/model_values.h"
#include "train/models/module_watch.h"
#include "train/optimizers/optimizer_fit.h"
#include "train/optimizers/optimizer_watch.h"
#include "train/optimizers/schedule_adapter.h"
#include "train/optimizers/step_parts.h"
#include "train/session/session.h"
#include "train/settings/settings_report.h"
#include "train/step/plain_backwards.h"
#include "train/step/step_counts.h"
#include "train/step/step_watch.h"

namespace accelerate::detail {

namespace {

std::string complaint_of(std::string_view what, std::string_view function) {
  return format(
      "[train] the DeepSpeed configuration has the section \"{}\", but "
      "prepare() got one made in code; make it with {}, or remove the section",
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
  if (training.optimizer && std::ranges::any_of(optimizers, is_own)) {
    complaints.push_back(
        complaint_of("optimizer", "optimizer_from_deepspeed()"));
  }
  const auto& schedulers = request.schedulers;
  if (training.scheduler &&
      std::ranges::any_of(schedulers, [](const auto& scheduler) {
        return !scheduler.schedule->is_from_deepspeed();
      })) {
    complaints.push_back(
        complaint_of("scheduler", "scheduler_from_deepspeed()"));
  }
  if (!complaints.empty()) throw ConfigError(join(complaints, "\n"));
}

// Throws ConfigError if the objects passed to prepare() contradict the
// session's DeepSpeed configuration: optimizers or schedules made in code
// although it has sections for them, or loaders with other batch sizes. Fills
// in the configuration's "auto" batch sizes. Does nothing without DeepSpeed.
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

}  // namespace

}  // namespace accelerate::detail

namespace accelerate {

namespace {

using detail::format;
using detail::ModelPlan;
using detail::ParallelPlan;
using detail::PreparedModel;
using detail::PrepareRequest;
using detail::Session;

const Mesh& mesh_of(Session& session, const ParallelPlan& plan) {
  if (detail::degrees_of(session.layout.mesh) == plan.degrees)
    return session.layout.mesh;
  for (const Mesh& mesh : session.layout.other_meshes) {
    if (detail::degrees_of(mesh) == plan.degrees) return mesh;
  }
  return session.layout.other_meshes.emplace_back(
      detail::with_degrees(session.layout.mesh, plan.degrees));
}

// Warns about programs that were exported for another precision, and refuses to
// shard them in another dtype.
void check_export(
    const Session& session,
    const PreparedModel& model,
    const ParallelPlan& plan) {
  const auto& autocast = model.forward.autocast_dtype;
  for (const std::string& warning :
       detail::export_warnings(*model.module, autocast)) {
    session.world.logger().log_once_per_world(
        LogLevel::warning, "exported", warning);
  }
  const bool shards = plan.degree(Axis::shard) > 1 || plan.would_shard ||
      plan.techniques.shard.disk;
  const auto& dtype = plan.techniques.shard.param_dtype;
  if (shards && dtype && !autocast)
    detail::require_dtypes_of_export(*model.module, *dtype);
}

std::unique_ptr<PreparedModel> make_prepared_model(
    Session& session,
    const std::shared_ptr<torch::nn::Module>& module,
    const ModelPlan& chosen) {
  const ParallelPlan& plan = chosen.plan;
  auto model = std::make_unique<PreparedModel>(PreparedModel{
      .session = &session, .module = module, .mesh = mesh_of(session, plan)});
  model->placement.reads_on_rank_0 = plan.reads_on_rank_0;
  model->evaluation_mode = chosen.evaluation_mode;
  model->placement.awaits_values =
      detail::lacks_values(model->mesh, *module, chosen.evaluation_mode);
  const bool moves = chosen.device_placement && !detail::is_dispatched(*module);
  model->placement.device = moves
      ? session.world.device()
      : detail::device_of(*module, session.world.device());
  if (moves) detail::move_to_device(*module, model->placement.device);
  model->table =
      detail::ParameterTable(*module, {}, &detail::is_offloaded_or_coded);
  if (session.options.autocast.enabled) {
    model->forward.autocast_dtype =
        detail::autocast_dtype(session.options.precision);
  }
  check_export(session, *model, plan);
  detail::ParallelPlan own_plan = plan;
  own_plan.techniques.shard.allocator_keeps_blocks =
      plan.keeps_freed_blocks && detail::can_keep_freed_blocks();
  if (const auto* stage =
          dynamic_cast<const detail::PipelineStageModule*>(module.get()))
    own_plan.techniques.whole_model = stage->whole_model;
  if (!chosen.evaluation_mode)
    model->strategies = detail::make_strategies(model->mesh, own_plan, *module);
  detail::give_memory(*model);
  const bool keeps_blocks = plan.keeps_freed_blocks && !chosen.evaluation_mode;
  if (keeps_blocks)
    model->placement.freed_blocks = detail::keep_freed_blocks(0);
  model->strategies.prepare(*module, model->table);
  if (session.options.fused_linear) {
    model->forward.layer_products =
        std::make_unique<detail::LayerProducts>(*module);
  }
  if (session.options.keep_casts && model->forward.autocast_dtype)
    model->forward.kept_casts = std::make_unique<detail::KeptCasts>(*module);
  if (const auto& complaint = model->strategies.traits().clipping_complaint;
      complaint &&
      (session.scaling.scaler || session.scaling.max_gradient_norm))
    throw ConfigError(*complaint);
  detail::ModelCalls calls;
  calls.ends_window = [&session] { return session.clock.sync_gradients(); };
  calls.step_on_part = [&session](detail::Strategy& strategy, auto parts) {
    detail::step_on_part(session.prepared, strategy, parts);
  };
  model->watches.plain_backwards =
      std::make_shared<detail::PlainBackwards>(*model, calls);
  model->watches.module = std::make_shared<detail::ModuleWatch>(*module);
  if (keeps_blocks) {
    std::int64_t gradient_bytes = 0, largest_on_disk = 0;
    for (const detail::Parameter* row : model->table.trainable()) {
      const auto bytes = static_cast<std::int64_t>(row->local.nbytes());
      if (row->make_state) {
        largest_on_disk = std::max(largest_on_disk, bytes);
      } else {
        gradient_bytes += bytes;
      }
    }
    model->placement.freed_blocks =
        detail::keep_freed_blocks(gradient_bytes + largest_on_disk);
    // Return the heap's pages of full parameters, which later tensors would not
    // reuse.
    if (model->placement.freed_blocks != nullptr) detail::return_free_memory();
  }
  return model;
}

// Makes the optimizer step on the strategies' tensors, and notices its
// destruction.
detail::PreparedOptimizer& make_prepared_optimizer(
    Session& session,
    torch::optim::Optimizer& optimizer) {
  for (const auto& model : session.prepared.models)
    detail::require_fitting_optimizer(optimizer, *model);
  for (const auto& model : session.prepared.models)
    model->strategies.bind(optimizer, model->table);
  detail::PreparedOptimizer& prepared =
      *session.prepared.optimizers.emplace_back(
          std::make_unique<detail::PreparedOptimizer>(detail::PreparedOptimizer{
              .session = &session,
              .inner = &optimizer,
              .fused_step = session.options.fused_optimizers
                  ? detail::fused_step_of(optimizer)
                  : nullptr,
              .num_backwards_used = session.step.num_backwards}));
  prepared.parameters = detail::digest_of_parameters(optimizer);
  detail::watch_steps(session, optimizer);
  session.prepared.step_counts->add(prepared.num_steps);
  prepared.watch = detail::watch_optimizer(optimizer, [&prepared] {
    prepared.was_destroyed = std::exchange(prepared.inner, nullptr) != nullptr;
  });
  return prepared;
}

// Binds optimizers that were prepared before this model.
void bind_earlier_optimizers(const Session& session, PreparedModel& model) {
  for (const auto& optimizer : session.prepared.optimizers) {
    if (optimizer->inner == nullptr) continue;
    detail::require_fitting_optimizer(*optimizer->inner, model);
    const bool has_added = detail::digest_of_parameters(*optimizer->inner) !=
        optimizer->parameters;
    model.strategies.bind(*optimizer->inner, model.table);
    detail::watch_steps(*model.session, *optimizer->inner);
    // The next step binds what the program has added to the other models.
    if (!has_added)
      optimizer->parameters = detail::digest_of_parameters(*optimizer->inner);
  }
}

// The schedule's own optimizer if it is known and prepared, otherwise all.
std::vector<const detail::PreparedOptimizer*> optimizers_of(
    const Session& session,
    const detail::SchedulerReference& scheduler) {
  std::vector<const detail::PreparedOptimizer*> all, own;
  for (const auto& optimizer : session.prepared.optimizers) {
    if (optimizer->inner == nullptr) continue;
    all.push_back(optimizer.get());
    if (scheduler.schedule->optimizer() == optimizer->inner)
      own.push_back(optimizer.get());
  }
  return own.empty() ? all : own;
}

}  // namespace

void detail::PrepareRequest::add_item(const void* object, const char* kind) {
  ++num_items;
  if (object == nullptr) {
    throw ConfigError(format(
        "[train] argument {} of prepare() is an empty pointer to {}",
        num_items,
        kind));
  }
}

void detail::PrepareRequest::add_model(
    std::shared_ptr<torch::nn::Module> module,
    const ModelOptions* options) {
  ++num_items;
  models.push_back(
      {std::move(module),
       options == nullptr ? nullptr
                          : std::make_shared<const ModelOptions>(*options),
       num_items});
}

void detail::PrepareRequest::add_optimizer(
    torch::optim::Optimizer* optimizer,
    bool is_owned) {
  add_item(optimizer, "an optimizer");
  optimizers.push_back({optimizer, is_owned, num_items});
}

void detail::PrepareRequest::add_loader(
    std::int64_t batch_size,
    std::optional<bool> splits_batches) {
  ++num_items;
  loaders.push_back({batch_size, splits_batches});
}

std::shared_ptr<PreparedModel> detail::PrepareResult::take_model() {
  return std::move(models[next_model++]);
}

Optimizer detail::PrepareResult::take_optimizer(std::shared_ptr<void> owner) {
  std::shared_ptr<PreparedOptimizer>& prepared = optimizers[next_optimizer++];
  if (owner) prepared->owner = std::move(owner);
  return Optimizer(std::move(prepared));
}

Scheduler detail::PrepareResult::take_scheduler(std::shared_ptr<void> owner) {
  std::shared_ptr<PreparedScheduler>& prepared = schedulers[next_scheduler++];
  if (owner) prepared->owner = std::move(owner);
  return Scheduler(std::move(prepared));
}

detail::PrepareResult Accelerator::apply(const PrepareRequest& request) const {
  const detail::PublicCall call("prepare()");
  Session& session = *session_;
  session.step.is_direct = false;
  require_preparable(session.layout.plan, session.prepared, request);
  detail::apply_deepspeed_rules(session, request);
  const auto plans = plans_of(session, request);
  // A training rank may miss a call in which others wait for it.
  if (!request.models.empty()) session.services.agreement->start_detector();
  detail::PrepareResult result;
  result.loader_context = [this] { return loader_context(); };
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (request.models[i].options)
      detail::note_ignored_settings(session, plans[i].ignored);
    session.prepared.models.push_back(
        make_prepared_model(session, request.models[i].module, plans[i]));
    bind_earlier_optimizers(session, *session.prepared.models.back());
    result.models.emplace_back(session_, session.prepared.models.back().get());
  }
  for (const detail::RequestedOptimizer& requested : request.optimizers) {
    detail::PreparedOptimizer& prepared =
        make_prepared_optimizer(session, *requested.optimizer);
    result.optimizers.emplace_back(session_, &prepared);
  }
  for (const detail::SchedulerReference& scheduler : request.schedulers) {
    if (scheduler.schedule->is_from_megatron_lm())
      session.layout.report.has_engine_schedule = true;
    session.prepared.schedulers.push_back(
        std::make_unique<detail::PreparedScheduler>(detail::PreparedScheduler{
            .session = &session,
            .schedule = scheduler.schedule,
            .optimizers = optimizers_of(session, scheduler)}));
    result.schedulers.emplace_back(
        session_, session.prepared.schedulers.back().get());
  }
  return result;
}

FullParameters detail::unshard_parameters(
    const std::shared_ptr<PreparedModel>& model) {
  if (!model->module) throw_released("the model again");
  model->placement.awaits_values = false;
  model->session->prepared.step_watch->require_steps_of_handles();
  return FullParameters(model, model->strategies.unshard_parameters());
}

}  // namespace accelerate
