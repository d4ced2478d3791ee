#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/detail/pipeline_value.h>
#include <accelerate/world.h>

#include "comm/group/begun_exchange.h"
#include "pipeline/message_order.h"
#include "pipeline/signature.h"
#include "pipeline/stage_messenger.h"
#include "planning/pipeline/schedule.h"

namespace accelerate::detail {

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
};

/// What the stages of a pipeline send each other: outputs to the next stage,
/// gradients to the previous one. A stage sends the signature of its outputs
/// with its first micro-batch of each number of rows; it must stay the same
/// afterwards. Stages on the same rank pass tensors directly. Used by one
/// thread.
///
/// Over a device's edge, the receiver begins to receive in the order in which
/// the sender sends, and keeps what it needs later. Signatures go through host
/// memory, so no host waits for its device.
class StageTransfers {
 public:
  /// `places`: those of all schedules. `trains`: whether some steps do.
  StageTransfers(
      Group&& group,
      at::Device device,
      const PipelineStagePlaces& places,
      bool trains);

  /// Begins a step; its messages do not mix with the previous step's.
  /// `num_rows`: that of each micro-batch.
  void begin_step(
      const PipelineSchedule& schedule,
      const std::vector<std::int64_t>& num_rows,
      const StepMode& mode);

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
  /// Begins to receive the gradients of a stage's outputs, if it has sent them.
  void expect_gradients(const StageValue& value);
  /// Returns one per output that requires one.
  PipelineTensors receive_gradients(const StageValue& value);

  [[nodiscard]] StageMessenger& messenger() { return messenger_; }
  /// Drops messages in flight.
  void abandon() noexcept;

 private:
  using Kind = StageMessage::Kind;
  struct Expected {
    PipelineTensors tensors;
    BegunExchange messages;
    /// Null for gradients.
    std::shared_ptr<const ValueSignature> signature = nullptr;
  };
  /// A gradient that comes back.
  struct Room {
    std::vector<std::int64_t> sizes;
    at::TensorOptions options;
  };
  /// (stage, rows, whether it trains, whether the model is in eval())
  using SignatureKey = std::tuple<int, std::int64_t, bool, bool>;
  using Signatures =
      std::map<SignatureKey, std::shared_ptr<const ValueSignature>>;

  static StageMessage outputs_of(int stage, const StageValue& value) {
    return {stage, value.micro_batch, Kind::outputs};
  }
  static StageMessage gradients_of(int stage, const StageValue& value) {
    return {stage, value.micro_batch, Kind::gradients};
  }
  [[nodiscard]] int rank_of(int stage) const {
    return schedule_->rank_of(stage);
  }
  [[nodiscard]] SignatureKey key_of(const StageMessage& message) const;

  [[nodiscard]] std::int64_t rows_of(const StageMessage& message) const {
    return num_rows_[static_cast<std::size_t>(message.micro_batch)];
  }

  /// Returns the signature that the first values had, of which the other rank
  /// is told unless it knows.
  std::shared_ptr<const ValueSignature> announce(
      const StageMessage& message,
      const std::shared_ptr<const ValueSignature>& signature,
      int peer);
  void require_like(
      const ValueSignature& known,
      const ValueSignature& found,
      const StageMessage& message) const;

  /// Begins to receive a message, on devices after those that precede it. With
  /// `waits`, the host waits for shapes that it does not know; otherwise it may
  /// leave the message for later.
  void expect(const StageMessage& message, bool waits);
  bool begin_to_receive(const StageMessage& message, bool waits);
  Expected take(const StageMessage& message);
  [[nodiscard]] std::shared_ptr<const ValueSignature> signature_for(
      const StageMessage& message,
      bool waits);
  [[nodiscard]] std::shared_ptr<const ValueSignature> receive_signature(
      const StageMessage& message) const;

  at::Device device_;
  StageMessenger messenger_;
  const PipelineSchedule* schedule_ = nullptr;
  std::vector<std::int64_t> num_rows_;
  StepMode mode_;
  Signatures sent_;
  Signatures received_;
  /// Values passed between stages of this rank.
  std::map<StageMessage, PipelineValue> handed_over_;
  std::map<StageMessage, std::vector<Room>> awaited_;
  std::map<StageMessage, Expected> expected_;
  /// Per rank that sends over an edge, the messages that are not expected yet.
  std::map<int, std::deque<StageMessage>> coming_;
};

}  // namespace accelerate::detail
