#include <accelerate/pipeline.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <map>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/accelerator.h>
#include <accelerate/error.h>

#include "base/text.h"
#include "comm/collectives/group_impl.h"
#include "comm/mesh.h"
#include "pipeline/executor.h"
#include "pipeline/micro_batches.h"
#include "pipeline/split.h"
#include "pipeline/stages.h"
#include "planning/pipeline/simulation.h"
#include "train/micro_step_weight.h"
#include "train/scaling.h"
#include "train/session.h"
#include "train/staged_model.h"

namespace accelerate {

namespace {

using detail::format;
using detail::PipelineExecutor;
using detail::PipelineSchedule;
using detail::PipelineStages;
using detail::PreparedModel;
using detail::Session;
using detail::TiedParameter;

// Runs `pass` between the events of the model's strategies.
void run_pass(
    PreparedModel& model,
    const at::Tensor& root,
    bool sync_gradients,
    const std::function<void()>& pass) {
  try {
    model.strategies.before_backward(sync_gradients, root);
    pass();
    model.strategies.after_backward(sync_gradients);
  } catch (const std::exception& error) {
    if (const auto better = model.strategies.on_failure(error))
      std::rethrow_exception(better);
    throw;
  }
}

at::Tensor gradient_of(const PreparedModel& model, const at::Tensor& tensor) {
  const detail::Parameter* const row = model.table.find(tensor);
  if (row != nullptr && row->local.grad().defined()) return row->local.grad();
  return tensor.grad();
}

}  // namespace

struct Pipeline::State {
  PipelineOptions options;
  detail::PipelineScheduleKind kind;
  int num_ranks = 1;
  int num_micro_batches = 1;
  PipelineStages stages;
  Model<torch::nn::Module> model;
  PipelineExecutor executor;
  /// The ranks that have each tied parameter; only those this rank has.
  std::vector<std::pair<at::Tensor, Group>> tied;
  std::map<int, PipelineSchedule> schedules = {};

  [[nodiscard]] int num_stages() const {
    return num_ranks * options.num_chunks;
  }
  [[nodiscard]] int last_rank() const { return num_ranks - 1; }
  [[nodiscard]] bool is_last() const { return executor.rank() == last_rank(); }

  const PipelineSchedule& schedule_for(std::int64_t rows) {
    const int count =
        static_cast<int>(std::min<std::int64_t>(num_micro_batches, rows));
    const auto known = schedules.find(count);
    if (known != schedules.end()) return known->second;
    return schedules
        .emplace(
            count,
            detail::make_pipeline_schedule(
                kind, num_ranks, count, options.num_chunks))
        .first->second;
  }

  PipelineTensors forward(int chunk, const PipelineTensors& inputs) {
    PreparedModel& prepared = *model.prepared();
    const int stage = chunk * num_ranks + executor.rank();
    detail::ForwardScope scope(prepared);
    try {
      PipelineTensors values = inputs;
      if (stage == 0) {
        for (at::Tensor& value : values)
          value = detail::adapt_input(prepared, value);
      }
      for (const auto& layer : stages.chunks[static_cast<std::size_t>(chunk)])
        values = layer.forward(values);
      if (stage + 1 == num_stages()) {
        // Other stages hand on what one process would compute with.
        for (at::Tensor& value : values) value = scope.restore_precision(value);
      }
      scope.finish(scope.needs_outputs() ? &values : nullptr);
      return values;
    } catch (const std::exception& error) {
      scope.fail(error);
    }
  }

  [[nodiscard]] std::vector<at::Tensor> trained_parameters(int chunk) const {
    std::vector<at::Tensor> found;
    const auto add = [&](const at::Tensor& tensor) {
      if (tensor.requires_grad()) found.push_back(tensor);
    };
    for (const auto& layer : stages.chunks[static_cast<std::size_t>(chunk)]) {
      for (const auto& [name, module] : layer.modules)
        for (const at::Tensor& tensor : module->parameters()) add(tensor);
      for (const auto& [name, tensor] : layer.parameters) add(tensor);
    }
    return found;
  }

  // Ends a step whose micro-batches have left their gradients: averages them
  // over the ranks that read other data if the window ends.
  void end_backwards() {
    PreparedModel& prepared = *model.prepared();
    Session& session = *prepared.session;
    if (prepared.sync_gradients) {
      if (session.world.size() > 1) ++*session.num_averaging_passes;
      // A pass that reaches no parameter: what it finds are the gradients of
      // earlier ones.
      run_pass(prepared, at::zeros({}), true, [] {});
      const at::NoGradGuard no_grad;
      for (const auto& [tensor, group] : tied) {
        const at::Tensor gradient = gradient_of(prepared, tensor);
        if (gradient.defined()) group.all_reduce(gradient);
      }
    }
    if (session.clock.window() > 1 && session.clock.serial() == 0)
      ++session.window.num_loose_backwards;
    ++session.step.num_backwards;
  }

  // Gives all ranks the losses of the last one, as numbers.
  void share_losses(std::vector<at::Tensor>& losses, std::size_t count) {
    at::Tensor numbers = at::zeros(
        {static_cast<std::int64_t>(count) + 1}, at::TensorOptions(at::kDouble));
    const at::Device device = model.prepared()->session->world.device();
    if (is_last()) {
      for (std::size_t i = 0; i < count; ++i)
        numbers[static_cast<std::int64_t>(i)].copy_(losses[i]);
      numbers[-1].fill_(static_cast<double>(losses[0].scalar_type()));
    }
    numbers = numbers.to(device);
    executor.broadcast(numbers, last_rank());
    if (is_last()) return;
    const auto dtype = static_cast<at::ScalarType>(
        static_cast<int>(numbers[-1].item<double>()));
    losses.clear();
    for (std::size_t i = 0; i < count; ++i)
      losses.push_back(numbers[static_cast<std::int64_t>(i)].to(dtype));
  }
};

namespace {

// Makes the first values of tied parameters those of the first stage that has
// them, and returns the groups of the ranks that add up their gradients.
std::vector<std::pair<at::Tensor, Group>> connect_tied(
    const World& world,
    const std::vector<int>& pipeline_ranks,
    const std::vector<TiedParameter>& tied) {
  std::vector<std::pair<at::Tensor, Group>> groups;
  std::map<std::vector<int>, Group> known;
  const at::NoGradGuard no_grad;
  for (const TiedParameter& parameter : tied) {
    if (!parameter.tensor.defined()) continue;
    std::vector<int> ranks;
    for (const int rank : parameter.ranks)
      ranks.push_back(pipeline_ranks[static_cast<std::size_t>(rank)]);
    const auto found = known.find(ranks);
    const Group group = found != known.end()
        ? found->second
        : known.emplace(ranks, world.new_group(ranks)).first->second;
    if (!parameter.tensor.is_meta()) {
      at::Tensor values = parameter.tensor.detach().to(world.device());
      values = values.contiguous();
      group.broadcast(values, 0);
      parameter.tensor.detach().copy_(values);
    }
    groups.emplace_back(parameter.tensor, group);
  }
  return groups;
}

// Strategies have reserved tags for what each stage has; later messages among
// all stages need the same ones.
void agree_on_tags(const Mesh& mesh) {
  const int next = detail::reserve_tags(mesh, 0);
  const at::Tensor most =
      at::full({}, next, at::kLong).to(mesh.world().device());
  mesh.group(Axis::pipeline).all_reduce(most, ReduceOp::max);
  detail::reserve_tags(
      mesh, static_cast<int>(most.item<std::int64_t>()) - next);
}

std::vector<std::string> names_of(
    const std::vector<detail::PipelineLayer>& layers) {
  std::vector<std::string> names;
  for (const auto& layer : layers) names.push_back(layer.name);
  return names;
}

int micro_batches_of(const PipelineOptions& options, int num_ranks) {
  const int count = options.num_micro_batches.value_or(num_ranks);
  if (count < 1) {
    throw ConfigError(
        format("[pipeline] num_micro_batches is {}; it is at least 1", count));
  }
  return count;
}

}  // namespace

void detail::throw_several_outputs(
    std::size_t num_outputs,
    std::size_t num_targets) {
  throw ConfigError(format(
      "[pipeline] the loss function takes one output and one target, but there "
      "are {} outputs and {} targets; let it take two vectors of tensors",
      num_outputs,
      num_targets));
}

Pipeline::Pipeline(
    const Accelerator& accelerator,
    const PipelineLayers& layers,
    const PipelineOptions& options) {
  const Group stages_group = accelerator.mesh().group(Axis::pipeline);
  const int num_ranks = stages_group.size();
  const auto kind = detail::parse_pipeline_schedule(options.schedule);
  const int num_micro_batches = micro_batches_of(options, num_ranks);
  // Refuses what no schedule can do.
  const PipelineSchedule schedule = detail::make_pipeline_schedule(
      kind, num_ranks, num_micro_batches, options.num_chunks);
  const std::vector<std::size_t> begins = detail::divide_layers(
      names_of(layers.layers()),
      options.split_points,
      options.costs.empty() ? detail::parameter_bytes(layers.layers())
                            : options.costs,
      schedule.num_stages());
  PipelineStages stages = detail::make_stages(
      layers.layers(), begins, num_ranks, stages_group.rank());
  const World& world = accelerator.world();
  auto tied = connect_tied(world, stages_group.world_ranks(), stages.tied);
  detail::free_other_stages(layers.layers(), *stages.module);
  Model<torch::nn::Module> model = accelerator.prepare(
      std::static_pointer_cast<torch::nn::Module>(stages.module));
  if (num_ranks > 1) {
    agree_on_tags(accelerator.mesh());
    model.prepared()->stage =
        detail::make_staged_model(layers.layers(), stages, stages_group.rank());
  }
  Group messages =
      num_ranks == 1 ? Group() : world.new_group(stages_group.world_ranks());
  const Store store =
      world.store().with_prefix(format("pipeline/{}", messages.impl()->name));
  state_ = std::make_shared<State>(State{
      options,
      kind,
      num_ranks,
      num_micro_batches,
      std::move(stages),
      std::move(model),
      PipelineExecutor(
          std::move(messages),
          store,
          world.device(),
          options.shapes_may_change),
      std::move(tied)});
}

PipelineResult Pipeline::run(
    const Batch& batch,
    const PipelineStepOptions& options) const {
  State& state = *state_;
  PreparedModel& prepared = *state.model.prepared();
  if (!prepared.module) detail::throw_released("the model again");
  Session& session = *prepared.session;
  detail::require_no_join(session, "a pipeline's step");
  const std::int64_t rows = detail::num_rows_of(batch.inputs, batch.targets);
  if (rows == 0) {
    throw ConfigError(
        "[pipeline] a step needs a batch of at least one sample, of which "
        "every rank knows the size: give inputs or targets on all ranks");
  }
  const PipelineSchedule& schedule = state.schedule_for(rows);
  const auto count = static_cast<std::size_t>(schedule.num_micro_batches);
  detail::StepInputs inputs{
      .inputs = {},
      .num_rows = detail::micro_batch_rows(rows, static_cast<int>(count))};
  if (has_first_stage())
    inputs.inputs = detail::cut_micro_batches(batch.inputs, inputs.num_rows);
  const auto targets =
      detail::cut_micro_batches(batch.targets, inputs.num_rows);

  double window_weight = 1;
  if (batch.trains) {
    detail::settle_scale(session);
    window_weight = detail::weight_of_micro_step(session);
  }
  const auto share_of = [&](std::size_t i) {
    return state.options.micro_batch_loss == MicroBatchLoss::sum
        ? 1.0
        : static_cast<double>(inputs.num_rows[i]) / static_cast<double>(rows);
  };
  PipelineResult result;
  std::vector<PipelineTensors> outputs(count);
  if (batch.loss && state.is_last()) result.losses.resize(count);
  const bool keeps_outputs = options.return_outputs || options.gather_outputs;
  detail::StageCalls calls;
  calls.forward = [&](int chunk, int, const PipelineTensors& values) {
    return state.forward(chunk, values);
  };
  calls.finish = [&](int micro_batch, const PipelineTensors& values) {
    const auto i = static_cast<std::size_t>(micro_batch);
    if (keeps_outputs) {
      for (const at::Tensor& value : values)
        outputs[i].push_back(value.detach());
    }
    if (!batch.loss) return at::Tensor();
    at::Tensor loss = batch.loss(values, targets[i]);
    if (!loss.defined() || loss.numel() != 1) {
      throw ConfigError(format(
          "[pipeline] the loss function returned {}; reduce the loss to one "
          "number (mean, sum)",
          loss.defined() ? format("{} numbers", loss.numel())
                         : std::string("an undefined tensor")));
    }
    result.losses[i] = loss.detach().clone();
    if (!batch.trains) return at::Tensor();
    if (!loss.requires_grad()) {
      throw ConfigError(
          "[pipeline] the loss function returned a loss without a graph; "
          "compute it from the outputs, outside of NoGradGuard and detach(), "
          "and leave some parameter trainable");
    }
    const double weight = share_of(i) * window_weight;
    if (weight != 1) loss = loss * weight;
    return session.scaler ? session.scaler->scale(loss) : loss;
  };
  calls.backward = [&](const at::Tensor& root,
                       const std::function<void()>& pass) {
    const detail::StepPartScope part(
        session.steps.get(), detail::StepPart::backward);
    run_pass(prepared, root, false, pass);
  };
  calls.parameters = [&](int chunk) { return state.trained_parameters(chunk); };
  state.executor.run(schedule, calls, inputs, batch.trains);
  if (batch.trains) state.end_backwards();

  const at::NoGradGuard no_grad;
  const bool shares = state.options.losses_on_all_ranks && state.num_ranks > 1;
  if (batch.loss && shares) state.share_losses(result.losses, count);
  for (std::size_t i = 0; i < result.losses.size(); ++i) {
    const at::Tensor share = result.losses[i] * share_of(i);
    result.loss = result.loss.defined() ? result.loss + share : share;
  }
  if (keeps_outputs && state.is_last())
    result.outputs = detail::join_micro_batches(outputs);
  if (options.gather_outputs && state.num_ranks > 1)
    state.executor.share(result.outputs, state.last_rank());
  return result;
}

const Model<torch::nn::Module>& Pipeline::model() const {
  return state_->model;
}

std::vector<at::Tensor> Pipeline::parameters() const {
  // LibTorch lists a tensor with two names twice.
  std::vector<at::Tensor> parameters;
  for (const detail::Parameter& row : model().prepared()->table.rows())
    parameters.push_back(row.tensor);
  return parameters;
}

int Pipeline::num_stages() const { return state_->num_stages(); }

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
        stage % static_cast<std::size_t>(state_->num_ranks),
        detail::join(stages()[stage], ", "));
  }
  return text +
      detail::draw_pipeline(state_->schedule_for(state_->num_micro_batches));
}

}  // namespace accelerate
