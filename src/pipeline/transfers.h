#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/detail/pipeline_value.h>
#include <accelerate/world.h>

#include "comm/group/begun_exchange.h"
#include "planning/pipeline/schedule.h"

namespace accelerate::detail {

/// What is known about a tensor before it arrives. An optional without a value
/// has dtype Undefined.
struct TensorSignature {
  at::ScalarType dtype = at::kFloat;
  /// True if its gradient is sent back.
  bool requires_grad = false;
  std::vector<std::int64_t> sizes;
  /// Strides of the values in memory, without gaps. The next stage gets the
  /// same layout, since kernels may round differently in another one.
  std::vector<std::int64_t> strides;

  /// Ignores strides: values of other strides are sent in those of the first.
  bool operator==(const TensorSignature& other) const {
    return dtype == other.dtype && requires_grad == other.requires_grad &&
        sizes == other.sizes;
  }
};

/// What must be known about a value in order to receive it.
struct ValueSignature {
  std::vector<TensorSignature> tensors;
  std::string structure;

  bool operator==(const ValueSignature&) const = default;
};

/// `trains`: tensors that require a gradient get theirs sent back.
ValueSignature signature_of(const PipelineValue& value, bool trains);

/// Encodes a signature as a message, and decodes it.
std::vector<std::int64_t> numbers_of(const ValueSignature& signature);
ValueSignature signature_in(const std::vector<std::int64_t>& numbers);

/// Formats a signature, as in "Float [2, 3], Long [2] without gradient".
std::string text_of(const ValueSignature& signature);

/// Views a tensor with its dimensions in the order of the signature's strides:
/// contiguous if it has these strides.
at::Tensor in_memory_order(
    const at::Tensor& tensor,
    const TensorSignature& signature);

/// Returns a tensor to receive into, with the signature's strides.
at::Tensor empty_like(const TensorSignature& signature, at::Device device);

/// Thrown if a message to or from a rank of the pipeline did not arrive.
struct LostPeer : std::runtime_error {
  LostPeer(int peer_rank, const std::string& text)
      : std::runtime_error(text), peer(peer_rank) {}

  int peer;  ///< its rank in the pipeline
};

/// The mode of a step.
struct StepMode {
  /// True if backwards follow.
  bool trains = true;
  /// True to send shapes with every micro-batch.
  bool shapes_may_change = false;
  /// True if the model is in eval(), in which its layers may return other
  /// shapes.
  bool is_evaluation = false;
};

/// Identifies the values of a stage for a micro-batch.
struct StageValue {
  int stage = 0;
  int micro_batch = 0;
  std::int64_t num_rows = 0;
};

/// The messages between the stages of a pipeline: outputs to the next stage,
/// gradients to the previous one. A stage sends the signature of its outputs
/// with its first micro-batch of each number of rows; it must stay the same
/// afterwards. Stages on the same rank pass tensors directly. Used by one
/// thread.
class StageTransfers {
 public:
  StageTransfers(Group&& group, at::Device device);

  /// Begins a step; its messages do not mix with the previous step's.
  void begin_step(const PipelineSchedule& schedule, const StepMode& mode);

  /// Sends the outputs of a stage to the next one. Throws ConfigError if they
  /// are not like those of earlier micro-batches.
  void send_outputs(const StageValue& value, const PipelineValue& outputs);
  /// Begins to receive the inputs of a stage, if their shapes are known.
  void expect_inputs(const StageValue& value);
  /// Returns the inputs of a stage; those whose gradients are sent back require
  /// gradients.
  PipelineValue receive_inputs(const StageValue& value);

  /// Sends the gradients of a stage's inputs to the previous stage, one per
  /// input that requires one.
  void send_gradients(
      const StageValue& value,
      const PipelineTensors& gradients);
  /// Begins to receive the gradients of a stage's outputs. `like`: the outputs
  /// that require gradients.
  void expect_gradients(const StageValue& value, const PipelineTensors& like);
  PipelineTensors receive_gradients(
      const StageValue& value,
      const PipelineTensors& like);

  /// Gives all ranks the values of `src`, in place.
  void broadcast(const at::Tensor& tensor, int src);

  /// Waits until all sends have completed.
  void end_step();
  /// Drops messages in flight.
  void abandon();

 private:
  enum class Direction { outputs, gradients };
  struct Expected {
    PipelineTensors tensors;
    BegunExchange messages;
  };
  /// (stage, rows, whether it trains, whether the model is in eval())
  using SignatureKey = std::tuple<int, std::int64_t, bool, bool>;
  /// (stage, micro-batch, direction)
  using ValueKey = std::tuple<int, int, Direction>;

  [[nodiscard]] int rank_of(int stage) const {
    return schedule_->rank_of(stage);
  }
  [[nodiscard]] int tag_of(const StageValue& value, Direction direction) const;
  /// Sends to one rank.
  void send(std::string what, std::vector<PeerMessage> messages);
  /// `first_tag`: that of the first tensor.
  [[nodiscard]] Expected receive(
      std::string what,
      PipelineTensors tensors,
      int peer,
      int first_tag) const;
  /// Returns the messages that tell the other rank the signature, unless it
  /// knows it already.
  [[nodiscard]] std::vector<PeerMessage>
  announce(const StageValue& value, const ValueSignature& signature, int peer);
  [[nodiscard]] std::vector<PeerMessage> signature_messages(
      const StageValue& value,
      const ValueSignature& signature,
      int peer) const;
  ValueSignature receive_signature(const StageValue& value, int peer);
  const ValueSignature& known_signature(const StageValue& value, int peer);
  [[nodiscard]] Expected receive_like(
      const ValueSignature& signature,
      const StageValue& value,
      int peer) const;
  [[nodiscard]] SignatureKey key_of(const StageValue& value) const {
    return {value.stage, value.num_rows, mode_.trains, mode_.is_evaluation};
  }

  Group group_;
  at::Device device_;
  const PipelineSchedule* schedule_ = nullptr;
  StepMode mode_;
  std::int64_t num_steps_ = 0;
  std::map<SignatureKey, ValueSignature> sent_;
  std::map<SignatureKey, ValueSignature> received_;
  /// Values passed between stages of this rank.
  std::map<ValueKey, PipelineValue> handed_over_;
  std::map<ValueKey, Expected> expected_;
  std::deque<BegunExchange> leaving_;
};

}  // namespace accelerate::detail
