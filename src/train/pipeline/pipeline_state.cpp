#include "train/pipeline/pipeline_state.h"

#include <algorithm>
#include <exception>
#include <unordered_set>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "parallel/expert/expert_losses.h"
#include "pipeline/values.h"
#include "train/session/session.h"
#include "train/step/plain_backwards.h"

namespace accelerate {

namespace {

using detail::PipelineLayer;
using detail::PreparedModel;
using detail::Session;

// Runs `body` between the events of the model's strategies.
void run_pass(
    PreparedModel& model,
    const at::Tensor& root,
    bool sync_gradients,
    const std::function<void()>& body) {
  const detail::OwnBackward own(model.session->window);
  try {
    model.strategies.before_backward(sync_gradients, root);
    body();
    model.strategies.after_backward(sync_gradients);
  } catch (const std::exception& error) {
    if (const auto better = model.strategies.on_failure(error))
      std::rethrow_exception(better);
    throw;
  }
}

std::vector<at::Tensor> trained_parameters(
    const std::vector<PipelineLayer>& layers) {
  std::vector<at::Tensor> found;
  const auto add = [&](const at::Tensor& tensor) {
    if (tensor.defined() && tensor.requires_grad()) found.push_back(tensor);
  };
  for (const PipelineLayer& layer : layers) {
    for (const auto& [name, module] : layer.modules)
      for (const at::Tensor& tensor : module->parameters()) add(tensor);
    for (const auto& [name, tensor] : layer.parameters) add(tensor);
  }
  return found;
}

}  // namespace

const detail::PipelineSchedule& Pipeline::State::schedule_for(
    std::int64_t rows) {
  const int count =
      static_cast<int>(std::min<std::int64_t>(num_micro_batches, rows));
  const auto known = schedules.find(count);
  if (known != schedules.end()) return known->second;
  return schedules
      .emplace(
          count,
          detail::make_partial_schedule(
              kind, places.num_ranks, count, places.num_chunks))
      .first->second;
}

detail::PipelineValue Pipeline::State::forward(
    int chunk,
    const detail::PipelineValue& inputs) {
  const int stage = places.stage(executor.rank(), chunk);
  detail::ForwardScope scope(prepared());
  try {
    detail::PipelineValue value = inputs;
    if (stage == 0) {
      for (at::Tensor& tensor : value.tensors)
        tensor = detail::adapt_input(prepared(), tensor);
    }
    for (const auto& layer : stages.chunks[static_cast<std::size_t>(chunk)]) {
      value = layer.forward(value);
      detail::require_tensors(value, layer.name);
    }
    if (stage + 1 == places.num_stages()) {
      // Other stages pass on what a single process would compute with.
      for (at::Tensor& tensor : value.tensors)
        tensor = scope.restore_precision(tensor);
    }
    scope.finish(scope.needs_outputs() ? &value.tensors : nullptr);
    return value;
  } catch (const std::exception& error) {
    scope.fail(error);
  }
}

at::Tensor Pipeline::State::take_expert_losses(int chunk) const {
  at::Tensor sum;
  for (const auto& layer : stages.chunks[static_cast<std::size_t>(chunk)]) {
    for (const auto& [name, module] : layer.modules) {
      const at::Tensor own = detail::take_losses(*module);
      if (own.defined()) sum = sum.defined() ? sum + own : own;
    }
  }
  return sum;
}

void Pipeline::State::backward(
    const detail::StagePass& pass,
    const std::function<void()>& body) {
  PreparedModel& own = prepared();
  const detail::StepPartScope part(
      own.session->services.steps.get(), detail::StepPart::backward);
  run_pass(own, pass.root, false, [&] {
    if (pass.is_last && own.sync_gradients)
      own.strategies.before_last_gradients(completed_by(pass.chunk));
    body();
  });
}

std::vector<at::Tensor> Pipeline::State::completed_by(int chunk) {
  completed_chunks.insert(chunk);
  std::unordered_set<const void*> needed_later;
  for (int other = 0; other < places.num_chunks; ++other) {
    if (completed_chunks.contains(other)) continue;
    for (const at::Tensor& tensor :
         trained_parameters(stages.chunks[static_cast<std::size_t>(other)]))
      needed_later.insert(tensor.unsafeGetTensorImpl());
  }
  std::vector<at::Tensor> found =
      trained_parameters(stages.chunks[static_cast<std::size_t>(chunk)]);
  std::erase_if(found, [&](const at::Tensor& tensor) {
    return needed_later.contains(tensor.unsafeGetTensorImpl());
  });
  return found;
}

void Pipeline::State::end_backwards() {
  PreparedModel& own = prepared();
  completed_chunks.clear();
  Session& session = *own.session;
  if (own.sync_gradients) {
    if (session.world.size() > 1) ++*session.window.num_averaging_passes;
    // A pass that reaches no parameter, so it only finds the gradients of
    // earlier passes.
    run_pass(own, at::zeros({}), true, [] {});
  }
  // Stages take the same steps on shared parameters, even where replicas do not
  // average gradients (LocalSGD).
  const bool ends_window = session.clock.sync_gradients() ||
      session.options.accumulation.sync_each_batch;
  if (own.sync_gradients || ends_window) tied.sum(own.table);
  if (session.clock.window() > 1 && session.clock.serial() == 0)
    ++session.window.progress.num_loose_backwards;
  detail::count_backward(session);
}

void Pipeline::State::share_losses(
    std::vector<at::Tensor>& losses,
    std::size_t count) {
  const at::Tensor numbers = at::zeros(
      {static_cast<std::int64_t>(count)},
      at::TensorOptions(at::kDouble)
          .device(prepared().session->world.device()));
  // In host memory, where it is read, so that no host waits for its device.
  const at::Tensor type = at::zeros({}, at::kLong);
  if (is_last()) {
    for (std::size_t i = 0; i < count; ++i)
      numbers[static_cast<std::int64_t>(i)].copy_(losses[i]);
    type.fill_(static_cast<std::int64_t>(losses[0].scalar_type()));
  }
  executor.broadcast(type, places.last_rank());
  executor.broadcast(numbers, places.last_rank());
  if (is_last()) return;
  const auto dtype = static_cast<at::ScalarType>(type.item<std::int64_t>());
  losses.clear();
  for (std::size_t i = 0; i < count; ++i)
    losses.push_back(numbers[static_cast<std::int64_t>(i)].to(dtype));
}

}  // namespace accelerate
