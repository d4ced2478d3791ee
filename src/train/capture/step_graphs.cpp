#include "train/capture/step_graphs.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "gate/watched_tensor.h"
#include "train/capture/host_reads.h"
#include "train/capture/side_stream.h"
#include "train/session/session.h"

namespace accelerate::detail {

namespace {

// Kinds whose plain calls are counted; a step whose shapes never recur must not
// fill the memory.
constexpr std::size_t kMaxKinds = 256;

std::optional<c10::Stream> side_stream_of(c10::Device device) {
  if (device.is_cpu()) return std::nullopt;
  const c10::impl::VirtualGuardImpl guard(device.type());
  return guard.getStreamFromGlobalPool(device);
}

std::vector<std::int64_t> versions_of(
    const std::vector<at::Tensor>& parameters) {
  std::vector<std::int64_t> versions;
  for (const at::Tensor& parameter : parameters)
    versions.push_back(parameter._version());
  return versions;
}

void move_to(at::Device device, const NestedParts& inputs) {
  for (at::Tensor* const tensor : inputs.tensors) {
    if (tensor->defined() && tensor->device() != device)
      *tensor = tensor->to(device, /*non_blocking=*/true);
  }
}

std::string obstacle_of_scale(const Session& session) {
  if (!session.scaling.scaler) return {};
  const bool is_open =
      session.scaling.is_due ||
      std::ranges::any_of(
          session.prepared.optimizers, [&](const auto& optimizer) {
            return optimizer->inner != nullptr &&
                session.scaling.scaler->is_unscaled(*optimizer->inner);
          });
  return is_open ? "it begins or ends between fp16's unscaling of gradients "
                   "and the optimizers' steps"
                 : "";
}

std::string obstacle_of_inputs(const NestedParts& inputs) {
  for (const at::Tensor* const tensor : inputs.tensors) {
    if (!tensor->defined()) continue;
    if (tensor->requires_grad()) return "an input requires gradients";
    if (tensor->layout() != at::kStrided) return "an input is not dense";
  }
  return {};
}

// The most numbers that the steps of all optimizers, a few of each, read.
std::size_t max_numbers(const std::vector<at::Tensor>& parameters) {
  constexpr std::size_t kPerParameter = 16, kAtLeast = 64;
  return kAtLeast + kPerParameter * parameters.size();
}

}  // namespace

StepGraphs::StepGraphs(
    std::shared_ptr<Session> session,
    const CaptureOptions& options)
    : session_(std::move(session)),
      options_(options),
      make_graph_(
          session_->capture.make_graph ? session_->capture.make_graph
                                       : graphs_of(session_->world.device())) {
  if (make_graph_) side_stream_ = side_stream_of(session_->world.device());
}

std::string StepGraphs::obstacle_of_models() {
  if (learned_.num_models_asked != session_->prepared.models.size()) {
    learned_.num_models_asked = session_->prepared.models.size();
    learned_.has_kept_weights = false;
    for (const auto& model : session_->prepared.models) {
      if (!model->module) continue;
      for (const at::Tensor& parameter : model->module->parameters())
        learned_.has_kept_weights =
            learned_.has_kept_weights || is_offloaded_or_coded(parameter);
    }
  }
  if (learned_.has_kept_weights)
    return "a model has weights that are fetched or decoded when they are used";
  for (const auto& model : session_->prepared.models) {
    if (!model->module || (model->strategies.is_idle() && !model->stage))
      continue;
    const auto names = model->strategies.names();
    return format(
        "a model is trained with techniques that work on the host ({})",
        join(std::vector<std::string>(names.begin(), names.end()), ", "));
  }
  return {};
}

std::string StepGraphs::obstacle(const NestedParts& inputs) {
  const Session& session = *session_;
  if (!learned_.given_up.empty()) return learned_.given_up;
  if (!make_graph_) {
    return format(
        "LibTorch has no graphs for the device {}",
        session.world.device().str());
  }
  if (session.world.size() > 1)
    return "several ranks exchange gradients, which graphs do not contain";
  if (session.join.is_open) return "it is inside join_uneven_inputs()";
  if (session.options.precision == Precision::fp8)
    return "the scales of float8 are updated on the host";
  if (session.capture.run != nullptr) return "it is inside another one";
  if (c10::InferenceMode::is_enabled()) return "it is in inference mode";
  if (std::string found = obstacle_of_models(); !found.empty()) return found;
  if (std::string found = obstacle_of_scale(session); !found.empty())
    return found;
  return obstacle_of_inputs(inputs);
}

void StepGraphs::give_up(std::string reason) {
  learned_.given_up = reason;
  reason_ = std::move(reason);
  learned_.graphs.clear();
  learned_.plain.clear();
  learned_.pool = {0, 0};
  warn();
}

void StepGraphs::warn() {
  if (session_->world.device().is_cpu() && !make_graph_) return;
  if (std::exchange(has_warned_, true)) return;
  session_->world.logger().log_once_per_world(
      LogLevel::warning,
      "train",
      format("a captured step runs plainly: {}", reason_));
}

StepKey StepGraphs::key_of_call(const NestedParts& inputs) {
  StepKey key = key_of_step(
      *session_, inputs, learned_.parameters, learned_.num_micro_steps);
  const auto known = learned_.plain.find(key.kind);
  if (known == learned_.plain.end() || !known->second.drops_gradients)
    return key;
  for (const at::Tensor& parameter : learned_.parameters)
    parameter.mutable_grad().reset();
  return key_of_step(
      *session_, inputs, learned_.parameters, learned_.num_micro_steps);
}

StepGraph* StepGraphs::find(const StepKey& key) {
  const auto found = std::ranges::find_if(
      learned_.graphs, [&](const auto& graph) { return graph->key == key; });
  return found == learned_.graphs.end() ? nullptr : found->get();
}

// Gradients that a program zeroes in place stay the same tensors. New ones may,
// but need not, lie where others lay before.
bool StepGraphs::has_gradients(const std::vector<WeakTensor>& known) const {
  return std::ranges::equal(
      known,
      learned_.parameters,
      {},
      &WeakTensor::_unsafe_get_target,
      [](const at::Tensor& parameter) {
        return parameter.grad().unsafeGetTensorImpl();
      });
}

// Gradients that graphs have left stay where they are.
bool StepGraphs::has_recorded_gradients() const {
  return std::ranges::all_of(
      learned_.parameters, [&](const at::Tensor& parameter) {
        return !parameter.grad().defined() ||
            std::ranges::any_of(learned_.graphs, [&](const auto& graph) {
              return std::ranges::any_of(
                  graph->gradients, [&](const auto& recorded) {
                    return recorded.second.is_same(parameter.grad());
                  });
            });
      });
}

bool StepGraphs::is_due(const Plain& plain, const StepKey& key) const {
  return plain.num_calls >= options_.warmup_steps &&
      plain.places == key.places &&
      (has_gradients(plain.gradients) || has_recorded_gradients());
}

std::shared_ptr<void> StepGraphs::run_plainly(const Run& run) {
  ++counts_.plain;
  return run();
}

std::shared_ptr<void> StepGraphs::warm_up(const StepKey& key, const Run& run) {
  const int before = learned_.plain[key.kind].num_calls;
  const int num_calls = std::min(before + 1, options_.warmup_steps);
  reason_ = before < options_.warmup_steps
      ? format(
            "it warms up: plain call {} of {} of its kind",
            num_calls,
            options_.warmup_steps)
      : "options of an optimizer, or the memory of parameters, state or "
        "gradients, differ from those of the last call";
  std::vector<WeakTensor> gradients;
  for (const at::Tensor& parameter : learned_.parameters)
    gradients.emplace_back(parameter.grad().getIntrusivePtr());
  const bool has_gradients_now = std::ranges::any_of(
      learned_.parameters,
      [](const at::Tensor& parameter) { return parameter.grad().defined(); });
  CapturedRun watched;
  const auto versions = versions_of(learned_.parameters);
  std::shared_ptr<void> outputs;
  std::string read;
  {
    const CapturedRunScope scope(*session_, watched);
    const SideStreamScope side(side_stream_);
    const HostReads reads(session_->world.device().type());
    outputs = run_plainly(run);
    read = reads.found();
  }
  learned_.num_micro_steps = watched.num_micro_steps;
  learned_.plain[key.kind] = {
      num_calls,
      key.places,
      std::move(gradients),
      has_gradients_now && watched.makes_gradients()};
  // In the first calls, optimizers make and move their state.
  if (num_calls < options_.warmup_steps) return outputs;
  if (!read.empty()) {
    give_up("it calls " + read);
  } else if (
      watched.num_steps == 0 && versions != versions_of(learned_.parameters)) {
    give_up("parameters change without a step() of a prepared optimizer");
  }
  return outputs;
}

void StepGraphs::record_into(
    StepGraph& made,
    CapturedRun& recorded,
    const Run& run) {
  const CapturedRunScope scope(*session_, recorded);
  const SideStreamScope side(side_stream_);
  if (side_stream_) {
    const c10::impl::VirtualGuardImpl guard(side_stream_->device_type());
    guard.synchronizeDevice(side_stream_->device_index());
  }
  const HostReads reads(session_->world.device().type());
  // Weights that are cast ahead of the step would not be cast in replays.
  at::autocast::clear_cache();
  try {
    made.graph->begin(learned_.pool);
    made.outputs = run();
    at::autocast::clear_cache();
    made.graph->end();
  } catch (const std::exception&) {
    at::autocast::clear_cache();
    made.graph->reset();
    if (reads.found().empty()) throw;
  }
  if (!reads.found().empty()) throw ConfigError("it calls " + reads.found());
  if (std::string found = obstacle_of_scale(*session_); !found.empty())
    throw ConfigError(found);
}

StepGraph*
StepGraphs::record(StepKey key, const NestedParts& inputs, const Run& run) {
  make_room();
  if (!learned_.given_up.empty()) return nullptr;
  auto made = std::make_unique<StepGraph>();
  made->key = std::move(key);
  made->graph = make_graph_();
  std::vector<at::Tensor> given;
  for (at::Tensor* const tensor : inputs.tensors) {
    given.push_back(*tensor);
    if (tensor->defined()) *tensor = at::empty_like(*tensor).copy_(*tensor);
    made->inputs.push_back(*tensor);
  }
  CapturedRun recorded(
      session_->world.device(), max_numbers(learned_.parameters));
  HostState before(*session_, learned_.parameters);
  const auto versions = versions_of(learned_.parameters);
  std::string failure;
  try {
    record_into(*made, recorded, run);
  } catch (const std::exception& error) {
    failure = error.what();
  } catch (...) {
    made->graph->reset();
    failure = "it throws";
  }
  made->gradients = gradients_of(learned_.parameters);
  for (std::size_t i = 0; i < learned_.parameters.size(); ++i) {
    if (learned_.parameters[i]._version() != versions[i])
      made->changed.push_back(learned_.parameters[i]);
  }
  before.restore();
  made->work = recorded.take();
  if (failure.empty()) {
    ++counts_.recorded;
    learned_.pool = made->graph->pool();
    return learned_.graphs.emplace_back(std::move(made)).get();
  }
  for (std::size_t i = 0; i < given.size(); ++i) *inputs.tensors[i] = given[i];
  give_up(std::move(failure));
  return nullptr;
}

void StepGraphs::make_room() {
  if (learned_.graphs.size() < static_cast<std::size_t>(options_.max_graphs))
    return;
  const auto oldest = std::ranges::min_element(
      learned_.graphs, {}, [](const auto& graph) { return graph->last_call; });
  if ((*oldest)->num_replays <= 1) ++learned_.num_wasted;
  learned_.graphs.erase(oldest);
  if (learned_.graphs.empty()) learned_.pool = {0, 0};
  if (learned_.num_wasted < options_.max_graphs) return;
  give_up(format(
      "it changes with nearly every call: {} graphs were recorded and not used "
      "again; raise max_graphs, or keep shapes and modes",
      learned_.num_wasted));
}

std::shared_ptr<void> StepGraphs::replay(
    StepGraph& graph,
    const std::vector<at::Tensor>& inputs) {
  const at::NoGradGuard no_grad;
  for (const auto& action : graph.work.before) action();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (graph.inputs[i].defined())
      graph.inputs[i].copy_(inputs[i], /*non_blocking=*/true);
  }
  auto& numbers = *graph.work.numbers;
  if (!numbers.empty()) {
    const auto count = static_cast<std::int64_t>(numbers.size());
    // A copy, since the next replay writes before this one has been read.
    const at::Tensor values =
        at::from_blob(numbers.data(), {count}, at::kFloat).clone();
    graph.work.memory.narrow(0, 0, count).copy_(values, /*non_blocking=*/true);
  }
  graph.graph->replay();
  set_gradients(graph.gradients);
  for (const at::Tensor& parameter : graph.changed)
    parameter.unsafeGetTensorImpl()->bump_version();
  for (const auto& action : graph.work.after) action();
  reason_.clear();
  ++counts_.replayed;
  ++graph.num_replays;
  graph.last_call = counts_.replayed;
  return graph.outputs;
}

std::shared_ptr<void> StepGraphs::call(
    const NestedParts& inputs,
    const Run& run) {
  const at::Device device = session_->world.device();
  settle_steps(*session_);
  reason_ = obstacle(inputs);
  if (!reason_.empty()) {
    warn();
    move_to(device, inputs);
    return run_plainly(run);
  }
  learned_.parameters = parameters_of(*session_);
  StepKey key = key_of_call(inputs);
  std::vector<at::Tensor> given;
  for (const at::Tensor* const tensor : inputs.tensors)
    given.push_back(*tensor);
  if (StepGraph* const graph = find(key)) return replay(*graph, given);
  move_to(device, inputs);
  if (learned_.plain.size() >= kMaxKinds && !learned_.plain.contains(key.kind))
    learned_.plain.clear();
  if (!is_due(learned_.plain[key.kind], key)) return warm_up(key, run);
  StepGraph* const graph = record(std::move(key), inputs, run);
  return graph != nullptr ? replay(*graph, given) : run_plainly(run);
}

std::shared_ptr<StepGraphs> make_step_graphs(
    std::shared_ptr<Session> session,
    const CaptureOptions& options) {
  if (options.warmup_steps < 1 || options.max_graphs < 1) {
    throw ConfigError(format(
        "[train] warmup_steps and max_graphs of capture() must be at least 1, "
        "but are {} and {}",
        options.warmup_steps,
        options.max_graphs));
  }
  auto graphs = std::make_shared<StepGraphs>(session, options);
  auto& all = session->capture.steps;
  std::erase_if(all, [](const auto& step) { return step.expired(); });
  all.push_back(graphs);
  return graphs;
}

std::shared_ptr<void> call_step(
    StepGraphs& graphs,
    const NestedParts& inputs,
    const std::function<std::shared_ptr<void>()>& run) {
  return graphs.call(inputs, run);
}

void detach_output(at::Tensor& tensor) {
  if (tensor.defined() && tensor.requires_grad()) tensor = tensor.detach();
}

void clone_output(at::Tensor& tensor) {
  if (tensor.defined()) tensor = tensor.clone();
}

const std::string& reason_of(const StepGraphs& graphs) {
  return graphs.reason();
}

CapturedStepCounts counts_of(const StepGraphs& graphs) {
  return graphs.counts();
}

void reset_step(StepGraphs& graphs) { graphs.reset(); }

}  // namespace accelerate::detail
