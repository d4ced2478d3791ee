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

/// An autograd pass on a rank.
struct StagePass {
  /// The tensor at which it begins.
  at::Tensor root;
  int chunk = 0;
  /// True if no later pass of this step reaches the chunk's parameters.
  bool is_last = false;
};

/// The functions that the executor calls on a rank.
struct StageCalls {
  /// Computes a chunk of this rank's layers.
  std::function<
      PipelineValue(int chunk, int micro_batch, const PipelineValue& inputs)>
      forward;
  /// Takes the outputs of the model, on the last stage; returns the scalar at
  /// which the backward begins, or an undefined tensor in an evaluation.
  std::function<at::Tensor(int micro_batch, const PipelineValue& outputs)>
      finish;
  /// Runs `body`, which performs the pass.
  std::function<void(const StagePass& pass, const std::function<void()>& body)>
      backward;
};

/// A step's micro-batches.
struct StepInputs {
  /// Inputs of the model per micro-batch, on the first stage.
  std::vector<PipelineValue> inputs;
  std::vector<std::int64_t> num_rows;
};

/// Runs schedules on one rank of a pipeline. Used by one thread; all ranks of
/// the group make the same calls.
class PipelineExecutor {
 public:
  /// `group`: the ranks of the pipeline in order; must be the only handle,
  /// since the group is closed when a rank fails. `store` holds the reason, and
  /// must not be used for anything else. `places`: those of all schedules;
  /// `trains`: whether some steps do. Collective.
  PipelineExecutor(
      Group&& group,
      Store store,
      at::Device device,
      const PipelineStagePlaces& places,
      bool trains);

  /// Computes one step: the whole schedule, or its forwards alone, without
  /// autograd. An exception from `calls` ends the step on all ranks: it is
  /// rethrown here, and the other ranks throw DistributedError, naming the
  /// stage and the reason. The executor cannot be used afterwards. The host
  /// waits for the other hosts, but for no device that NCCL connects.
  void run(
      const PipelineSchedule& schedule,
      const StageCalls& calls,
      const StepInputs& inputs,
      const StepMode& mode);

  /// Gives all ranks the values of rank `src` of the pipeline, in place.
  void broadcast(const at::Tensor& tensor, int src);

  /// Returns, on all ranks, the value that `make` returns on rank `src`. If it
  /// throws, all ranks throw.
  PipelineValue share(int src, const std::function<PipelineValue()>& make);

  /// This rank's place in the pipeline.
  [[nodiscard]] int rank() const { return rank_; }

 private:
  void guard(const std::function<void()>& body);
  /// A micro-batch between its forward and the end of its backward.
  struct Activation {
    PipelineTensors inputs;
    /// The tensors at which the backward begins: outputs that require
    /// gradients, or the loss.
    PipelineTensors roots;
    /// Set between the two halves of a split backward.
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
  bool trains_ = true;
  /// The number of each chunk's backwards that this step has yet to end.
  std::map<int, int> num_backwards_left_;
  /// What is being computed, for errors.
  std::string place_;
  std::string broken_;
  std::map<ActivationKey, Activation> kept_;
};

}  // namespace accelerate::detail
