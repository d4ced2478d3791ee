#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/pipeline_layers.h>
#include <accelerate/world.h>

#include "comm/transport/transport.h"
#include "planning/pipeline/schedule.h"

namespace accelerate::detail {

/// A message to or from a rank of the pipeline did not arrive.
struct LostPeer : std::runtime_error {
  LostPeer(int peer_rank, const std::string& text)
      : std::runtime_error(text), peer(peer_rank) {}

  int peer;  ///< its rank in the pipeline
};

/// What a stage hands on: a tensor's dtype and shape, and whether its gradient
/// comes back.
struct TensorSignature {
  at::ScalarType dtype = at::kFloat;
  bool requires_grad = false;
  std::vector<std::int64_t> sizes;

  bool operator==(const TensorSignature&) const = default;
};
using StageSignature = std::vector<TensorSignature>;

/// Which values travel: those of a stage for a micro-batch.
struct StageValue {
  int stage = 0;
  int micro_batch = 0;
  std::int64_t num_rows = 0;
};

/// The messages between the stages of a pipeline: outputs to the next stage,
/// gradients to the one before. What a stage hands on is told with its first
/// micro-batch of each number of rows, and must stay the same afterwards.
/// Stages of one rank hand tensors over. Used by one thread.
class StageTransfers {
 public:
  /// `shapes_may_change`: shapes are told with every micro-batch.
  StageTransfers(Group&& group, at::Device device, bool shapes_may_change);

  /// Begins a step; its messages do not mix with those of the one before.
  void begin_step(const PipelineSchedule& schedule, bool trains);

  /// Hands the outputs of a stage to the next one. Throws ConfigError if they
  /// are not like those of earlier micro-batches.
  void send_outputs(const StageValue& value, const PipelineTensors& outputs);
  /// Begins to receive the inputs of a stage, as far as their shapes are known.
  void expect_inputs(const StageValue& value);
  /// The inputs of a stage; those whose gradients go back require them.
  PipelineTensors receive_inputs(const StageValue& value);

  /// Hands the gradients of a stage's inputs to the stage before, one per input
  /// that requires one.
  void send_gradients(
      const StageValue& value,
      const PipelineTensors& gradients);
  /// Begins to receive the gradients of a stage's outputs, `like` those that
  /// require them.
  void expect_gradients(const StageValue& value, const PipelineTensors& like);
  PipelineTensors receive_gradients(
      const StageValue& value,
      const PipelineTensors& like);

  /// Gives all ranks the values of `src`, in place.
  void broadcast(const at::Tensor& tensor, int src);

  /// Waits until everything that was sent has left.
  void end_step();
  /// Forgets messages under way.
  void abandon();

 private:
  enum class Direction { outputs, gradients };
  struct Message {
    Work work;
    at::Tensor tensor;
    int peer = 0;
  };
  /// (stage, rows, whether it trains)
  using SignatureKey = std::tuple<int, std::int64_t, bool>;
  /// (stage, micro-batch, direction)
  using ValueKey = std::tuple<int, int, Direction>;

  [[nodiscard]] int rank_of(int stage) const {
    return schedule_->rank_of(stage);
  }
  [[nodiscard]] int tag_of(const StageValue& value, Direction direction) const;
  void send(const at::Tensor& tensor, int peer, int tag);
  Message receive(const at::Tensor& tensor, int peer, int tag);
  static void wait(const Message& message);
  Work guarded(int peer, const std::function<Work(Connection&)>& begin);
  void send_signature(
      const StageValue& value,
      const StageSignature& signature,
      int peer);
  StageSignature receive_signature(const StageValue& value, int peer);
  std::vector<Message> receive_like(
      const StageSignature& signature,
      const StageValue& value,
      int peer);
  [[nodiscard]] SignatureKey key_of(const StageValue& value) const {
    return {value.stage, value.num_rows, trains_};
  }

  Group group_;
  at::Device device_;
  bool shapes_may_change_;
  const PipelineSchedule* schedule_ = nullptr;
  bool trains_ = true;
  std::int64_t num_steps_ = 0;
  std::map<SignatureKey, StageSignature> sent_;
  std::map<SignatureKey, StageSignature> received_;
  std::map<ValueKey, PipelineTensors> handed_over_;
  std::map<ValueKey, std::vector<Message>> expected_;
  std::deque<Message> leaving_;
};

}  // namespace accelerate::detail
