#include <accelerate/pipeline.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <accelerate/accelerator.h>
#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/group/group_impl.h"
#include "comm/mesh.h"
#include "planning/pipeline/operations.h"
#include "planning/pipeline/simulation.h"
#include "train/models/staged_model.h"
#include "train/pipeline/division.h"
#include "train/pipeline/pipeline_state.h"
#include "train/session/session.h"

namespace accelerate {

namespace {

using detail::format;
using detail::PipelineExecutor;
using detail::PipelineSchedule;
using detail::PipelineStages;

// An error on one rank ends the call on all, instead of leaving the other ranks
// waiting.
Model<torch::nn::Module> prepare_stage(
    const Accelerator& accelerator,
    const Group& pipeline,
    const std::shared_ptr<torch::nn::Module>& module) {
  std::optional<Model<torch::nn::Module>> model;
  std::string failure;
  std::exception_ptr error;
  try {
    model = accelerator.prepare(module);
  } catch (const DistributedError&) {
    throw;
  } catch (const std::exception& caught) {
    failure = caught.what();
    error = std::current_exception();
  }
  const std::vector<std::string> failures = pipeline.all_gather_bytes(failure);
  if (error) std::rethrow_exception(error);
  for (std::size_t rank = 0; rank < failures.size(); ++rank) {
    if (failures[rank].empty()) continue;
    throw DistributedError(format(
        "[pipeline] rank {} could not prepare its layers: {}",
        pipeline.world_ranks()[rank],
        failures[rank]));
  }
  return *model;
}

// Strategies have reserved tags for each stage's parameters; later messages
// among all stages need the same tags.
void agree_on_tags(const Mesh& mesh) {
  const int next = detail::reserve_tags(mesh, 0);
  const at::Tensor most =
      at::full({}, next, at::kLong).to(mesh.world().device());
  mesh.group(Axis::pipeline).all_reduce(most, ReduceOp::max);
  detail::reserve_tags(
      mesh, static_cast<int>(most.item<std::int64_t>()) - next);
}

}  // namespace

Pipeline::Pipeline(
    const Accelerator& accelerator,
    const PipelineLayers& layers,
    const PipelineOptions& given) {
  const Group stages_group = accelerator.mesh().group(Axis::pipeline);
  const int num_ranks = stages_group.size();
  const PipelineOptions options =
      detail::complete(given, accelerator, layers.layers());
  const PipelineScheduleKind kind = options.schedule;
  const PipelineSchedule schedule = detail::schedule_of(options, num_ranks);
  const std::vector<std::size_t> begins =
      detail::begins_of(options, accelerator, layers.layers(), schedule);
  PipelineStages stages = detail::make_stages(
      layers.layers(), begins, schedule, stages_group.rank());
  const World& world = accelerator.world();
  detail::TiedGradients tied(world, stages_group.world_ranks(), stages.tied);
  std::shared_ptr<torch::nn::Module> whole =
      detail::make_whole_module(layers.layers());
  detail::free_other_stages(layers.layers(), *stages.module);
  stages.module->whole_model = whole;
  Model<torch::nn::Module> model =
      prepare_stage(accelerator, stages_group, stages.module);
  if (num_ranks > 1) {
    agree_on_tags(accelerator.mesh());
    model.prepared()->stage = detail::make_staged_model(
        stages, std::move(whole), stages_group.rank());
  }
  Group messages =
      num_ranks == 1 ? Group() : world.new_group(stages_group.world_ranks());
  const Store store =
      world.store().with_prefix(format("pipeline/{}", messages.impl()->name));
  state_ = std::make_shared<State>(State{
      options,
      kind,
      schedule,
      schedule.num_micro_batches,
      std::move(stages),
      std::move(model),
      PipelineExecutor(
          std::move(messages),
          store,
          world.device(),
          schedule,
          /*trains=*/true),
      std::move(tied)});
}

const Model<torch::nn::Module>& Pipeline::model() const {
  return state_->model;
}

std::vector<at::Tensor> Pipeline::parameters() const {
  // LibTorch lists a tensor twice if it has two names.
  std::vector<at::Tensor> parameters;
  for (const detail::Parameter& row : model().prepared()->table.rows())
    parameters.push_back(row.tensor);
  return parameters;
}

int Pipeline::num_stages() const { return state_->places.num_stages(); }

bool Pipeline::has_first_stage() const { return state_->executor.rank() == 0; }

bool Pipeline::has_last_stage() const { return state_->is_last(); }

const std::vector<std::vector<std::string>>& Pipeline::stages() const {
  return state_->stages.layers;
}

std::string Pipeline::describe() const {
  std::string text;
  for (std::size_t stage = 0; stage < stages().size(); ++stage) {
    text += format(
        "stage {} (rank {} of the pipeline): {}\n",
        stage,
        state_->places.rank_of(static_cast<int>(stage)),
        detail::join(stages()[stage], ", "));
  }
  return text +
      detail::draw_pipeline(state_->schedule_for(state_->num_micro_batches));
}

std::vector<std::vector<std::string>> Pipeline::actions() const {
  std::vector<std::vector<std::string>> texts;
  for (const auto& operations : detail::operations_with_communication(
           state_->schedule_for(state_->num_micro_batches))) {
    auto& own = texts.emplace_back();
    for (const auto& operation : operations)
      own.push_back(detail::text_of(operation));
  }
  return texts;
}

}  // namespace accelerate
