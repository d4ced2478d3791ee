#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/detail/pipeline_value.h>
#include <accelerate/world.h>

#include "pipeline/split_backward.h"
#include "pipeline/transfers.h"
#include "planning/pipeline/schedule.h"

namespace accelerate::detail {

/// A pass of autograd on a rank.
struct StagePass {
  /// Where it begins.
  at::Tensor root;
  int chunk = 0;
  /// No later pass of this step reaches the chunk's parameters.
  bool is_last = false;
};

/// What the executor calls on a rank.
struct StageCalls {
  /// Computes a chunk of this rank's layers.
  std::function<
      PipelineValue(int chunk, int micro_batch, const PipelineValue& inputs)>
      forward;
  /// Takes the outputs of the model, on the last stage; returns the scalar at
  /// which the backward begins, or nothing in an evaluation.
  std::function<at::Tensor(int micro_batch, const PipelineValue& outputs)>
      finish;
  /// Runs `body`, which is the pass.
  std::function<void(const StagePass& pass, const std::function<void()>& body)>
      backward;
};

/// The rows of a step's micro-batches.
struct StepInputs {
  /// Inputs of the model per micro-batch, on the first stage.
  std::vector<PipelineValue> inputs;
  std::vector<std::int64_t> num_rows;
};

/// Runs schedules on one rank of a pipeline. Used by one thread; all ranks of
/// the group make the same calls.
class PipelineExecutor {
 public:
  /// `group`: the ranks of the pipeline in order; the only handle, since it is
  /// closed when a rank fails. `store` is used for the reason, and by nobody
  /// else.
  PipelineExecutor(Group&& group, Store store, at::Device device);

  /// Computes one step: the whole schedule, or its forwards alone, without
  /// autograd. What `calls` throws ends the step on all
  /// ranks: it is rethrown here, and the others throw DistributedError, naming
  /// the stage and the reason. The executor cannot be used afterwards.
  void run(
      const PipelineSchedule& schedule,
      const StageCalls& calls,
      const StepInputs& inputs,
      const StepMode& mode);

  /// Gives all ranks the values of rank `src` of the pipeline, in place.
  void broadcast(const at::Tensor& tensor, int src);

  /// The value that `make` gives on rank `src`, on all ranks. If it throws,
  /// all ranks do.
  PipelineValue share(int src, const std::function<PipelineValue()>& make);

  /// This rank of the pipeline.
  [[nodiscard]] int rank() const { return rank_; }

 private:
  void guard(const std::function<void()>& body);
  /// A micro-batch between its forward and the end of its backward.
  struct Activation {
    PipelineTensors inputs;
    /// Where the backward begins: outputs that require gradients, or the loss.
    PipelineTensors roots;
    /// Set between the two halves of a divided backward.
    std::unique_ptr<SplitBackward> halves = nullptr;
  };
  using ActivationKey = std::pair<int, int>;  // chunk, micro-batch

  void run_actions(const StageCalls& calls, const StepInputs& inputs);
  void expect(const PipelineAction& action);
  void forward(
      const PipelineAction& action,
      const StageCalls& calls,
      const StepInputs& inputs);
  void backward(const PipelineAction& action, const StageCalls& calls);
  PipelineTensors compute_gradients(
      const PipelineAction& action,
      const StageCalls& calls,
      const PipelineTensors& gradients);
  void backward_weight(const PipelineAction& action, const StageCalls& calls);
  [[nodiscard]] StagePass pass_of(
      const PipelineAction& action,
      const at::Tensor& root) const;
  [[nodiscard]] StageValue value_of(const PipelineAction& action) const;
  [[nodiscard]] static bool is_first(int stage) { return stage == 0; }
  [[nodiscard]] bool is_last(int stage) const {
    return stage + 1 == schedule_->num_stages();
  }
  [[nodiscard]] int world_rank() const {
    return world_ranks_[static_cast<std::size_t>(rank_)];
  }
  [[nodiscard]] std::string describe(const PipelineAction& action) const;
  void report(const std::string& reason) noexcept;
  [[noreturn]] void fail(const LostPeer& lost);
  void close() noexcept;

  at::Device device_;
  std::vector<int> world_ranks_;
  int rank_;
  Store store_;
  StageTransfers transfers_;
  const PipelineSchedule* schedule_ = nullptr;
  const std::vector<std::int64_t>* num_rows_ = nullptr;
  bool trains_ = true;
  /// Backwards of each chunk that this step has yet to end.
  std::map<int, int> num_backwards_left_;
  /// What is being computed, for errors.
  std::string place_;
  std::string broken_;
  std::map<ActivationKey, Activation> kept_;
};

}  // namespace accelerate::detail
