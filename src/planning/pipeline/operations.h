#pragma once

#include <compare>
#include <string>
#include <tuple>
#include <vector>

#include "planning/pipeline/schedule.h"

namespace accelerate::detail {

/// An operation of a rank in a schedule: an action, or communication that goes
/// with it.
struct PipelineOperation {
  enum class Kind {
    forward,
    backward,
    backward_input,
    backward_weight,
    unshard,
    reshard,
    reduce_gradients,
    send_forward,
    receive_forward,
    send_backward,
    receive_backward,
    /// A forward beside a backward; both are in `parts`.
    overlap,
  };

  Kind kind = Kind::forward;
  int stage = 0;
  int micro_batch = 0;  ///< 0 for operations that concern all
  std::vector<PipelineOperation> parts = {};

  std::strong_ordering operator<=>(const PipelineOperation& other) const;
  bool operator==(const PipelineOperation& other) const;
};
// Written out: Clang cannot default comparisons of a type that has a vector of
// itself.
inline bool PipelineOperation::operator==(
    const PipelineOperation& other) const {
  return std::tie(kind, stage, micro_batch, parts) ==
      std::tie(other.kind, other.stage, other.micro_batch, other.parts);
}
inline std::strong_ordering PipelineOperation::operator<=>(
    const PipelineOperation& other) const {
  return std::tie(kind, stage, micro_batch, parts) <=>
      std::tie(other.kind, other.stage, other.micro_batch, other.parts);
}

/// Formats an operation as PyTorch does: "4F0" is the forward of stage 4 and
/// micro-batch 0, "4B0" its backward, "4I0" and "4W0" the halves of the
/// backward; "4SEND_F0", "5RECV_F0", "4UNSHARD", "4RESHARD", "4REDUCE_GRAD",
/// "(0F7;7B3)OVERLAP_F_B".
std::string text_of(const PipelineOperation& operation);

/// The actions of each rank.
std::vector<std::vector<PipelineOperation>> operations_of(
    const PipelineSchedule& schedule);

/// Adds the reduction of each stage's gradients after its last backward.
void add_reductions(
    std::vector<PipelineOperation>& operations,
    int num_micro_batches);

/// The actions of each rank with their communication, as PyTorch's runtime lays
/// them out: which stages are unsharded (at most three at once, or four where a
/// forward overlaps a backward), when gradients are reduced, and what is sent
/// and received. A receive is placed where the peer sends, so that transports
/// that match messages by order stay in step.
std::vector<std::vector<PipelineOperation>> operations_with_communication(
    const PipelineSchedule& schedule);

}  // namespace accelerate::detail
