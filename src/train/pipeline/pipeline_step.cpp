// A step of a pipeline: a batch, its micro-batches, and the results.
#include <accelerate/pipeline.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "parallel/expert/expert_losses.h"
#include "pipeline/values.h"
#include "train/pipeline/pipeline_state.h"
#include "train/session/session.h"
#include "train/step/gradients.h"
#include "train/step/scaling.h"
#include "train/step/step_watch.h"

namespace accelerate {

namespace {

using detail::format;
using detail::PipelineValue;
using detail::Session;

void require_loss(const at::Tensor& loss, bool trains) {
  if (!loss.defined() || loss.numel() != 1) {
    throw ConfigError(format(
        "[pipeline] the loss function must return one number, but returned {}; "
        "reduce the loss (mean, sum)",
        loss.defined() ? format("{} numbers", loss.numel())
                       : std::string("an undefined tensor")));
  }
  if (trains && !loss.requires_grad()) {
    throw ConfigError(
        "[pipeline] the loss function must return a loss with a graph, but "
        "returned one without; compute it from the outputs, outside "
        "NoGradGuard and detach(), and leave some parameter trainable");
  }
}

}  // namespace

/// One call of step(), evaluate() or forward().
class Pipeline::Step {
 public:
  Step(State& state, const Batch& batch, const PipelineStepOptions& options);

  PipelineResult run();

 private:
  /// What each micro-batch gave.
  struct Results {
    std::vector<at::Tensor> losses;
    std::vector<PipelineValue> outputs;
  };

  detail::StageCalls calls();
  /// Makes the backward from a chunk's outputs include its experts' losses.
  void add_expert_losses(int chunk, int micro_batch, PipelineValue& outputs);
  at::Tensor finish(int micro_batch, const PipelineValue& outputs);
  /// A share of a micro-batch's loss in the window's loss, scaled by the
  /// scaler.
  [[nodiscard]] at::Tensor weighted(const at::Tensor& loss, double share) const;
  void collect(PipelineResult& result);
  [[nodiscard]] double share_of_rows(std::size_t micro_batch) const {
    return static_cast<double>(inputs_.num_rows[micro_batch]) /
        static_cast<double>(num_rows_);
  }
  /// A micro-batch's share in the batch's loss.
  [[nodiscard]] double share_of(std::size_t micro_batch) const {
    return state_.options.micro_batch_loss == MicroBatchLoss::sum
        ? 1.0
        : share_of_rows(micro_batch);
  }

  State& state_;
  Session& session_;
  const Batch& batch_;
  PipelineStepOptions options_;
  std::int64_t num_rows_;
  const detail::PipelineSchedule& schedule_;
  detail::StepInputs inputs_;
  std::vector<PipelineValue> targets_;
  double window_weight_ = 1;
  /// Losses of the last stage's experts, between its forward and finish().
  at::Tensor expert_losses_;
  bool keeps_outputs_;
  Results results_;
};

namespace {

std::int64_t rows_of(
    const PipelineValue& inputs,
    const PipelineValue& targets) {
  const std::int64_t rows = detail::num_rows_of(inputs, targets);
  if (rows > 0) return rows;
  throw ConfigError(
      "[pipeline] a step needs a batch of at least one sample, whose size "
      "every rank knows: pass inputs or targets on all ranks");
}

}  // namespace

Pipeline::Step::Step(
    State& state,
    const Batch& batch,
    const PipelineStepOptions& options)
    : state_(state),
      session_(*state.prepared().session),
      batch_(batch),
      options_(options),
      num_rows_(rows_of(batch.inputs, batch.targets)),
      schedule_(state.schedule_for(num_rows_)),
      keeps_outputs_(options.return_outputs || options.gather_outputs) {
  inputs_.num_rows =
      detail::micro_batch_rows(num_rows_, schedule_.num_micro_batches);
  if (state.executor.rank() == 0)
    inputs_.inputs = detail::cut_micro_batches(batch.inputs, inputs_.num_rows);
  targets_ = detail::cut_micro_batches(batch.targets, inputs_.num_rows);
  results_.outputs.resize(inputs_.num_rows.size());
  if (batch.loss && state.is_last())
    results_.losses.resize(inputs_.num_rows.size());
}

PipelineResult Pipeline::Step::run() {
  const detail::LibraryCall call;
  session_.prepared.step_watch->require_steps_of_handles();
  if (batch_.trains) {
    detail::settle_scale(session_);
    window_weight_ = detail::weight_of_micro_step(session_);
    state_.tied.begin_step(state_.prepared().table);
  }
  state_.executor.run(
      schedule_,
      calls(),
      inputs_,
      {.trains = batch_.trains,
       .shapes_may_change = options_.shapes_may_change.value_or(
           state_.options.shapes_may_change),
       .is_evaluation = !state_.prepared().module->is_training()});
  if (batch_.trains) state_.end_backwards();
  PipelineResult result;
  collect(result);
  return result;
}

detail::StageCalls Pipeline::Step::calls() {
  detail::StageCalls calls;
  calls.forward = [this](
                      int chunk, int micro_batch, const PipelineValue& inputs) {
    PipelineValue outputs = state_.forward(chunk, inputs);
    if (batch_.trains) add_expert_losses(chunk, micro_batch, outputs);
    return outputs;
  };
  calls.finish = [this](int micro_batch, const PipelineValue& outputs) {
    return finish(micro_batch, outputs);
  };
  calls.backward =
      [this](const detail::StagePass& pass, const std::function<void()>& body) {
        state_.backward(pass, body);
      };
  return calls;
}

at::Tensor Pipeline::Step::finish(
    int micro_batch,
    const PipelineValue& outputs) {
  const auto i = static_cast<std::size_t>(micro_batch);
  if (keeps_outputs_) {
    const PipelineValue kept = batch_.select ? batch_.select(outputs) : outputs;
    results_.outputs[i].structure = kept.structure;
    for (const at::Tensor& tensor : kept.tensors) {
      results_.outputs[i].tensors.push_back(
          tensor.defined() ? tensor.detach() : tensor);
    }
  }
  if (!batch_.loss) return {};
  const at::Tensor loss = batch_.loss(outputs, targets_[i]);
  require_loss(loss, batch_.trains);
  results_.losses[i] = loss.detach().clone();
  if (!batch_.trains) return {};
  const at::Tensor own = weighted(loss, share_of(i));
  return expert_losses_.defined() ? own + std::exchange(expert_losses_, {})
                                  : own;
}

at::Tensor Pipeline::Step::weighted(const at::Tensor& loss, double share)
    const {
  const double weight = share * window_weight_;
  const at::Tensor own = weight == 1 ? loss : loss * weight;
  return session_.scaling.scaler ? session_.scaling.scaler->scale(own) : own;
}

void Pipeline::Step::add_expert_losses(
    int chunk,
    int micro_batch,
    PipelineValue& outputs) {
  at::Tensor losses = state_.take_expert_losses(chunk);
  if (!losses.defined() || !losses.requires_grad()) return;
  // These are means over tokens, whatever a micro-batch's loss is.
  losses =
      weighted(losses, share_of_rows(static_cast<std::size_t>(micro_batch)));
  const int stage = state_.places.stage(state_.executor.rank(), chunk);
  if (stage + 1 == state_.places.num_stages()) {
    expert_losses_ = losses;
    return;
  }
  const auto output =
      std::ranges::find_if(outputs.tensors, [](const auto& tensor) {
        return tensor.defined() && tensor.is_floating_point();
      });
  if (output == outputs.tensors.end()) {
    throw ConfigError(format(
        "[pipeline] stage {} must return a floating-point tensor, so that the "
        "losses of its experts get a gradient, but does not; return one, or "
        "set balance_loss_coefficient and z_loss_coefficient to 0",
        stage));
  }
  *output = detail::with_loss(*output, losses);
}

void Pipeline::Step::collect(PipelineResult& result) {
  const at::NoGradGuard no_grad;
  const bool is_alone = state_.places.num_ranks == 1;
  if (batch_.loss && state_.options.losses_on_all_ranks && !is_alone)
    state_.share_losses(results_.losses, results_.outputs.size());
  for (std::size_t i = 0; i < results_.losses.size(); ++i) {
    const at::Tensor share = results_.losses[i] * share_of(i);
    result.loss = result.loss.defined() ? result.loss + share : share;
  }
  result.losses = std::move(results_.losses);
  if (!keeps_outputs_) return;
  PipelineValue outputs;
  const auto join = [this] {
    return detail::join_micro_batches(results_.outputs);
  };
  if (options_.gather_outputs && !is_alone) {
    outputs = state_.executor.share(state_.places.last_rank(), join);
  } else if (state_.is_last()) {
    outputs = join();
  }
  result.outputs = std::move(outputs.tensors);
  result.output_structure = std::move(outputs.structure);
}

PipelineResult Pipeline::run(
    const Batch& batch,
    const PipelineStepOptions& options) const {
  const detail::PreparedModel& model = state_->prepared();
  if (!model.module) detail::throw_released("the model again");
  detail::require_no_join(*model.session, "a pipeline's step");
  return Step(*state_, batch, options).run();
}

}  // namespace accelerate
