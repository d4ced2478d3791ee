#include "pipeline/executor.h"

#include <chrono>
#include <thread>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/group/group_impl.h"

namespace accelerate::detail {

namespace {

using ActionKind = PipelineActionKind;

// How long a rank looks for the reason why another one ended.
constexpr std::chrono::milliseconds kDiagnosisTime{2000};
constexpr std::chrono::milliseconds kDiagnosisPause{20};

constexpr const char* kReason = "reason";
constexpr const char* kNumReports = "num_reports";

std::string_view name_of_kind(ActionKind kind) {
  switch (kind) {
    case ActionKind::forward:
      return "forward";
    case ActionKind::backward:
      return "backward";
    case ActionKind::backward_input:
      return "gradient of the inputs";
    case ActionKind::backward_weight:
      break;
  }
  return "gradient of the weights";
}

// Thread-local because ranks may be threads.
thread_local int micro_batch_under_way = 0;

struct MicroBatchScope {
  explicit MicroBatchScope(int micro_batch) {
    micro_batch_under_way = micro_batch;
  }
  ~MicroBatchScope() { micro_batch_under_way = 0; }
  MicroBatchScope(const MicroBatchScope&) = delete;
  MicroBatchScope& operator=(const MicroBatchScope&) = delete;
};

// Whether the chunk's parameters then have all of the micro-batch's gradients.
bool completes_weights(ActionKind kind) {
  return kind == ActionKind::backward || kind == ActionKind::backward_weight;
}

PipelineTensors requiring_grad(const PipelineTensors& tensors) {
  PipelineTensors chosen;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor.requires_grad()) chosen.push_back(tensor);
  }
  return chosen;
}

// Replaces undefined gradients with zeros, where nothing depends on the input.
void fill_up(PipelineTensors& gradients, const PipelineTensors& inputs) {
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) gradients[i] = at::zeros_like(inputs[i]);
  }
}

}  // namespace

PipelineExecutor::PipelineExecutor(
    Group&& group,
    Store store,
    at::Device device,
    const PipelineStagePlaces& places,
    bool trains)
    : device_(device),
      world_ranks_(group.world_ranks()),
      rank_(group.rank()),
      store_(std::move(store)),
      transfers_(std::move(group), device, places, trains) {}

void PipelineExecutor::run(
    const PipelineSchedule& schedule,
    const StageCalls& calls,
    const StepInputs& inputs,
    const StepMode& mode) {
  guard([&] {
    schedule_ = &schedule;
    trains_ = mode.trains;
    transfers_.begin_step(schedule, inputs.num_rows, mode);
    const at::AutoGradMode records(mode.trains);
    run_actions(calls, inputs);
    transfers_.messenger().end_step();
  });
}

void PipelineExecutor::broadcast(const at::Tensor& tensor, int src) {
  guard([&] { transfers_.messenger().broadcast(tensor, src); });
}

PipelineValue PipelineExecutor::share(
    int src,
    const std::function<PipelineValue()>& make) {
  PipelineValue value;
  guard([&] {
    const bool gives = rank_ == src;
    if (gives) value = make();
    std::vector<std::int64_t> numbers;
    if (gives) numbers = numbers_of(signature_of(value, /*trains=*/false));
    // In host memory, so that no host waits for its device.
    const at::Tensor count =
        at::full({}, static_cast<std::int64_t>(numbers.size()), at::kLong);
    transfers_.messenger().broadcast(count, src);
    numbers.resize(static_cast<std::size_t>(count.item<std::int64_t>()));
    const at::Tensor told = at::tensor(numbers, at::kLong);
    transfers_.messenger().broadcast(told, src);
    const auto* const first = told.const_data_ptr<std::int64_t>();
    const ValueSignature signature =
        signature_in({first, first + told.numel()});
    if (!gives) value.structure = signature.structure;
    value.tensors.resize(signature.tensors.size());
    for (std::size_t i = 0; i < value.tensors.size(); ++i) {
      at::Tensor& tensor = value.tensors[i];
      if (!gives) tensor = empty_like(signature.tensors[i], device_);
      if (!tensor.defined()) continue;
      transfers_.messenger().broadcast(
          in_memory_order(tensor, signature.tensors[i]).contiguous(), src);
    }
  });
  return value;
}

void PipelineExecutor::guard(const std::function<void()>& body) {
  if (!broken_.empty()) {
    throw DistributedError(format(
        "[pipeline] the pipeline can no longer be used, since {}", broken_));
  }
  place_ = format("rank {}", world_rank());
  try {
    body();
  } catch (const LostPeer& lost) {
    fail(lost);
  } catch (const std::exception& error) {
    report(format("{} failed: {}", place_, error.what()));
    close();
    throw;
  } catch (...) {
    report(format("{} failed", place_));
    close();
    throw;
  }
}

void PipelineExecutor::run_actions(
    const StageCalls& calls,
    const StepInputs& inputs) {
  std::vector<PipelineAction> actions;
  for (const PipelineAction& action :
       schedule_->ranks[static_cast<std::size_t>(rank_)]) {
    if (trains_ || action.kind == ActionKind::forward)
      actions.push_back(action);
  }
  num_backwards_left_.clear();
  for (const PipelineAction& action : actions) {
    if (completes_weights(action.kind)) ++num_backwards_left_[action.chunk];
  }
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const PipelineAction& action = actions[i];
    place_ = describe(action);
    if (completes_weights(action.kind)) --num_backwards_left_[action.chunk];
    expect(action);
    // The next action's inputs can arrive while this one computes.
    if (i + 1 < actions.size()) expect(actions[i + 1]);
    switch (action.kind) {
      case ActionKind::forward:
        forward(action, calls, inputs);
        break;
      case ActionKind::backward:
      case ActionKind::backward_input:
        backward(action, calls);
        break;
      case ActionKind::backward_weight:
        backward_weight(action, calls);
        break;
    }
  }
}

void PipelineExecutor::expect(const PipelineAction& action) {
  const StageValue value = value_of(action);
  if (action.kind == ActionKind::forward) {
    if (!is_first(value.stage)) transfers_.expect_inputs(value);
    return;
  }
  if (action.kind != ActionKind::backward_weight && !is_last(value.stage))
    transfers_.expect_gradients(value);
}

void PipelineExecutor::forward(
    const PipelineAction& action,
    const StageCalls& calls,
    const StepInputs& inputs) {
  const StageValue value = value_of(action);
  const PipelineValue taken = is_first(value.stage)
      ? inputs.inputs[static_cast<std::size_t>(action.micro_batch)]
      : transfers_.receive_inputs(value);
  const MicroBatchScope scope(action.micro_batch);
  const PipelineValue outputs =
      calls.forward(action.chunk, action.micro_batch, taken);
  Activation activation;
  if (is_last(value.stage)) {
    const at::Tensor loss = calls.finish(action.micro_batch, outputs);
    if (trains_) activation.roots = {loss};
  } else {
    transfers_.send_outputs(value, outputs);
    activation.roots = requiring_grad(outputs.tensors);
  }
  if (!trains_) return;
  // Gradients of the first stage's inputs are not used here; if a program wants
  // them, its inputs have a graph.
  if (!is_first(value.stage)) activation.inputs = taken.tensors;
  kept_[{action.chunk, action.micro_batch}] = std::move(activation);
}

void PipelineExecutor::backward(
    const PipelineAction& action,
    const StageCalls& calls) {
  const StageValue value = value_of(action);
  const PipelineTensors inputs =
      requiring_grad(kept_.at({action.chunk, action.micro_batch}).inputs);
  PipelineTensors gradients = compute_gradients(
      action,
      calls,
      is_last(value.stage) ? PipelineTensors(1)
                           : transfers_.receive_gradients(value));
  if (!is_first(value.stage)) {
    fill_up(gradients, inputs);
    transfers_.send_gradients(value, gradients);
  }
  if (action.kind == ActionKind::backward)
    kept_.erase({action.chunk, action.micro_batch});
}

// Returns the gradients of the inputs that require them.
PipelineTensors PipelineExecutor::compute_gradients(
    const PipelineAction& action,
    const StageCalls& calls,
    const PipelineTensors& gradients) {
  Activation& activation = kept_.at({action.chunk, action.micro_batch});
  const PipelineTensors roots = std::move(activation.roots);
  const PipelineTensors inputs =
      requiring_grad(std::exchange(activation.inputs, {}));
  PipelineTensors found(inputs.size());
  const bool is_whole = action.kind == ActionKind::backward;
  const StagePass pass =
      pass_of(action, roots.empty() ? at::Tensor() : roots[0]);
  if (roots.empty()) return found;
  if (is_whole) {
    calls.backward(pass, [&] { torch::autograd::backward(roots, gradients); });
    for (std::size_t i = 0; i < inputs.size(); ++i) found[i] = inputs[i].grad();
    return found;
  }
  activation.halves = std::make_unique<SplitBackward>(roots, gradients, inputs);
  if (activation.halves->has_inputs()) {
    calls.backward(pass, [&] { found = activation.halves->compute_inputs(); });
  }
  return found;
}

void PipelineExecutor::backward_weight(
    const PipelineAction& action,
    const StageCalls& calls) {
  const Activation activation =
      std::move(kept_.extract({action.chunk, action.micro_batch}).mapped());
  const StagePass pass = pass_of(action, at::Tensor());
  if (!activation.halves) return;
  calls.backward(pass, [&] { activation.halves->compute_weights(); });
}

StagePass PipelineExecutor::pass_of(
    const PipelineAction& action,
    const at::Tensor& root) const {
  return {root, action.chunk, num_backwards_left_.at(action.chunk) == 0};
}

StageValue PipelineExecutor::value_of(const PipelineAction& action) const {
  return {schedule_->stage(rank_, action.chunk), action.micro_batch};
}

std::string PipelineExecutor::describe(const PipelineAction& action) const {
  return format(
      "stage {} of {} (rank {}), in the {} of micro-batch {},",
      schedule_->stage(rank_, action.chunk),
      schedule_->num_stages(),
      world_rank(),
      name_of_kind(action.kind),
      action.micro_batch);
}

// The first report in a pipeline is the cause of all others.
void PipelineExecutor::report(const std::string& reason) noexcept {
  broken_ = reason;
  if (world_ranks_.size() == 1) return;
  try {
    if (store_.add(kNumReports, 1) == 1) store_.set(kReason, reason);
  } catch (const std::exception&) {
    // Rank 0, which hosts the store, has ended: the others will notice.
  }
}

void PipelineExecutor::fail(const LostPeer& lost) {
  const int peer = world_ranks_[static_cast<std::size_t>(lost.peer)];
  std::string reason = format(
      "rank {}, which {} waited for, has ended or does not answer ({})",
      peer,
      place_,
      lost.what());
  try {
    const auto deadline = std::chrono::steady_clock::now() + kDiagnosisTime;
    while (!store_.has(kReason) && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(kDiagnosisPause);
    if (store_.has(kReason)) {
      reason = store_.get(kReason);
      broken_ = reason;
    } else {
      report(reason);
    }
  } catch (const std::exception&) {
    broken_ = reason;
  }
  close();
  throw DistributedError("[pipeline] " + reason);
}

void PipelineExecutor::close() noexcept {
  kept_.clear();
  // Closes the connection, which the ranks that wait for this one notice.
  transfers_.abandon();
}

}  // namespace accelerate::detail

namespace accelerate {

int current_micro_batch() { return detail::micro_batch_under_way; }

}  // namespace accelerate
