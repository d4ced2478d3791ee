#pragma once

#include <compare>
#include <deque>
#include <set>
#include <string>
#include <utility>

#include "planning/pipeline/schedule.h"

namespace accelerate::detail {

/// A value that one stage sends to a neighbour.
struct StageMessage {
  enum class Kind { outputs, gradients };

  /// The stage that computes it.
  int stage = 0;
  int micro_batch = 0;
  Kind kind = Kind::outputs;

  std::strong_ordering operator<=>(const StageMessage&) const = default;
};

/// The most tensors in a message.
inline constexpr int kMostStageTensors = 1022;

/// Formats a message, as in "the outputs of stage 3".
std::string name_of(const StageMessage& message);

/// A rank of the pipeline that sends, and the one that receives.
using StageEdge = std::pair<int, int>;

/// The ranks between which messages go; `trains`: gradients as well.
std::set<StageEdge> stage_edges(const PipelineStagePlaces& places, bool trains);

/// What goes over an edge in one step, in the order in which the sender's
/// actions produce it; both ends derive it from the schedule.
std::deque<StageMessage> messages_of(
    const PipelineSchedule& schedule,
    const StageEdge& edge,
    bool trains);

}  // namespace accelerate::detail
