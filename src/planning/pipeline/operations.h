#pragma once

#include <compare>
#include <string>
#include <vector>

#include "planning/pipeline/schedule.h"

namespace accelerate::detail {

/// One of the things that a rank does in a schedule: an action, or what comes
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
    /// A forward beside a backward, which are in `parts`.
    overlap,
  };

  Kind kind = Kind::forward;
  int stage = 0;
  int micro_batch = 0;  ///< 0 for what concerns all
  std::vector<PipelineOperation> parts = {};

  std::strong_ordering operator<=>(const PipelineOperation&) const = default;
  bool operator==(const PipelineOperation&) const = default;
};

/// As PyTorch prints it: "4F0" is the forward of stage 4 and micro-batch 0, "4B0"
/// its backward, "4I0" and "4W0" the halves of it; "4SEND_F0", "5RECV_F0",
/// "4UNSHARD", "4RESHARD", "4REDUCE_GRAD", "(0F7;7B3)OVERLAP_F_B".
std::string text_of(const PipelineOperation& operation);

/// The actions of each rank.
std::vector<std::vector<PipelineOperation>> operations_of(
    const PipelineSchedule& schedule);

/// Adds the reduction of each stage's gradients, after the last of its
/// backwards.
void add_reductions(
    std::vector<PipelineOperation>& operations,
    int num_micro_batches);

/// The actions of each rank with everything that goes with them, as PyTorch's
/// runtime lays it out: which stages' parameters are gathered, at most three at
/// once, when gradients are reduced, and what is sent and received. A receive
/// stands where the other rank sends, so that transports which match messages
/// by their order cannot be confused.
std::vector<std::vector<PipelineOperation>> operations_with_communication(
    const PipelineSchedule& schedule);

}  // namespace accelerate::detail
