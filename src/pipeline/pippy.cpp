#include <accelerate/prepare_pippy.h>

#include <algorithm>
#include <map>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>

#include "base/require.h"
#include "base/text/text.h"
#include "comm/group/group_impl.h"
#include "pipeline/automatic_split.h"
#include "pipeline/executor.h"
#include "pipeline/split.h"
#include "pipeline/stages.h"
#include "pipeline/values.h"

namespace accelerate {

struct PippyModel::State {
  detail::PipelineStages stages;
  std::vector<std::string> split_points;
  int num_chunks = 1;
  bool gathers_output = false;
  int num_ranks = 1;
  at::Device device;
  detail::PipelineExecutor executor;
  std::shared_ptr<torch::nn::Module> module;
  std::map<int, detail::PipelineSchedule> schedules = {};

  const detail::PipelineSchedule& schedule_for(int num_micro_batches) {
    const auto known = schedules.find(num_micro_batches);
    if (known != schedules.end()) return known->second;
    return schedules
        .emplace(
            num_micro_batches,
            detail::make_pipeline_schedule(
                PipelineScheduleKind::gpipe, num_ranks, num_micro_batches))
        .first->second;
  }
};

namespace {

using detail::format;
using detail::layer_names;

}  // namespace

// Returns the number of rows in rank 0's batch. Errors are detected there, but
// end the call on all ranks.
std::int64_t PippyModel::agree_on_rows(
    State& state,
    const detail::PipelineValue& inputs) {
  const at::Tensor told = at::zeros({}, at::kLong);
  std::string wrong;
  if (state.executor.rank() == 0) {
    try {
      told.fill_(detail::num_rows_of(inputs));
    } catch (const ConfigError& error) {
      wrong = error.what();
    }
  }
  // In host memory, so that no host waits for its device.
  state.executor.broadcast(told, 0);
  const std::int64_t rows = told.item<std::int64_t>();
  if (!wrong.empty()) throw ConfigError(wrong);
  if (rows == 0) {
    throw ConfigError(
        "[pipeline] the batch of a model that prepare_pippy() divided must "
        "have at least one sample on rank 0, and tensors with samples along "
        "dimension 0");
  }
  return rows;
}

const std::vector<std::string>& PippyModel::hf_split_points() const {
  return state_->split_points;
}

const std::shared_ptr<torch::nn::Module>& PippyModel::module() const {
  return state_->module;
}

PipelineTensors PippyModel::run(const detail::PipelineValue& inputs) const {
  State& state = *state_;
  const at::NoGradGuard no_grad;
  const std::int64_t rows = agree_on_rows(state, inputs);
  const int count =
      static_cast<int>(std::min<std::int64_t>(state.num_chunks, rows));
  const detail::PipelineSchedule& schedule = state.schedule_for(count);
  detail::StepInputs step{
      .inputs = {}, .num_rows = detail::micro_batch_rows(rows, count)};
  if (state.executor.rank() == 0) {
    detail::PipelineValue placed = inputs;
    for (at::Tensor& tensor : placed.tensors) {
      if (tensor.defined()) tensor = tensor.to(state.device);
    }
    step.inputs = detail::cut_micro_batches(placed, step.num_rows);
  }
  std::vector<detail::PipelineValue> outputs(static_cast<std::size_t>(count));
  detail::StageCalls calls;
  calls.forward = [&](int chunk, int, const detail::PipelineValue& given) {
    detail::PipelineValue value = given;
    for (const auto& layer :
         state.stages.chunks[static_cast<std::size_t>(chunk)]) {
      value = layer.forward(value);
      detail::require_tensors(value, layer.name);
    }
    return value;
  };
  calls.finish = [&](int micro_batch, const detail::PipelineValue& value) {
    outputs[static_cast<std::size_t>(micro_batch)] = value;
    return at::Tensor();
  };
  state.executor.run(
      schedule,
      calls,
      step,
      {.trains = false, .is_evaluation = !state.module->is_training()});
  detail::PipelineValue whole;
  const int last = state.num_ranks - 1;
  const auto join = [&] { return detail::join_micro_batches(outputs); };
  if (state.gathers_output && state.num_ranks > 1) {
    whole = state.executor.share(last, join);
  } else if (state.executor.rank() == last) {
    whole = join();
  }
  return std::move(whole.tensors);
}

PippyModel prepare_pippy(
    const World& world,
    const PipelineLayers& layers,
    const PreparePippyOptions& options) {
  const int num_ranks = world.size();
  const int num_chunks = options.num_chunks.value_or(num_ranks);
  detail::require_at_least("pipeline", "num_chunks", num_chunks, 1);
  const bool is_auto = options.split_points.empty() ||
      options.split_points == std::vector<std::string>{"auto"};
  std::vector<std::string> points = options.split_points;
  if (num_ranks == 1) {
    points.clear();
  } else if (is_auto) {
    points = detail::automatic_split(
        layers, options.no_split_module_classes, num_ranks);
  }
  const std::vector<double> costs(layers.size(), 1);
  const auto begins =
      detail::divide_layers(layer_names(layers), points, costs, num_ranks);
  detail::PipelineStages stages = detail::make_stages(
      layers.layers(), begins, {.num_ranks = num_ranks}, world.rank());
  detail::free_other_stages(layers.layers(), *stages.module);
  {
    const at::NoGradGuard no_grad;
    stages.module->to(world.device());
  }
  Group messages =
      num_ranks == 1 ? Group() : world.new_group(world.group().world_ranks());
  const Store store =
      world.store().with_prefix(format("pippy/{}", messages.impl()->name));
  PippyModel model;
  const std::shared_ptr<torch::nn::Module> module = stages.module;
  model.state_ = std::make_shared<PippyModel::State>(PippyModel::State{
      std::move(stages),
      std::move(points),
      num_chunks,
      options.gather_output,
      num_ranks,
      world.device(),
      detail::PipelineExecutor(
          std::move(messages),
          store,
          world.device(),
          {.num_ranks = num_ranks},
          /*trains=*/false),
      module});
  return model;
}

}  // namespace accelerate
