#include "pipeline/message_order.h"

#include <cstddef>

#include "base/text/text.h"

namespace accelerate::detail {

std::string name_of(const StageMessage& message) {
  return format(
      "the {} of stage {}",
      message.kind == StageMessage::Kind::outputs ? "outputs" : "gradients",
      message.stage);
}

std::set<StageEdge> stage_edges(
    const PipelineStagePlaces& places,
    bool trains) {
  std::set<StageEdge> edges;
  for (int stage = 0; stage + 1 < places.num_stages(); ++stage) {
    const int before = places.rank_of(stage), after = places.rank_of(stage + 1);
    if (before == after) continue;
    edges.emplace(before, after);
    if (trains) edges.emplace(after, before);
  }
  return edges;
}

std::deque<StageMessage> messages_of(
    const PipelineSchedule& schedule,
    const StageEdge& edge,
    bool trains) {
  const auto [from, to] = edge;
  std::deque<StageMessage> messages;
  for (const PipelineAction& action :
       schedule.ranks[static_cast<std::size_t>(from)]) {
    const int stage = schedule.stage(from, action.chunk);
    const bool is_forward = action.kind == PipelineActionKind::forward;
    const int target = is_forward ? stage + 1 : stage - 1;
    if (action.kind == PipelineActionKind::backward_weight ||
        (!is_forward && !trains) || target < 0 ||
        target == schedule.num_stages() || schedule.rank_of(target) != to)
      continue;
    messages.push_back(
        {stage,
         action.micro_batch,
         is_forward ? StageMessage::Kind::outputs
                    : StageMessage::Kind::gradients});
  }
  return messages;
}

}  // namespace accelerate::detail
