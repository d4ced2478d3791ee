#include "planning/pipeline/operations.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

using OperationKind = PipelineOperation::Kind;
using Operations = std::vector<PipelineOperation>;

// As in PyTorch: stages for a forward, a backward, and the next operation.
constexpr std::size_t kGatheredStages = 3;

constexpr std::pair<OperationKind, std::string_view> kSymbols[] = {
    {OperationKind::forward, "F"},
    {OperationKind::backward, "B"},
    {OperationKind::backward_input, "I"},
    {OperationKind::backward_weight, "W"},
    {OperationKind::unshard, "UNSHARD"},
    {OperationKind::reshard, "RESHARD"},
    {OperationKind::reduce_gradients, "REDUCE_GRAD"},
    {OperationKind::send_forward, "SEND_F"},
    {OperationKind::receive_forward, "RECV_F"},
    {OperationKind::send_backward, "SEND_B"},
    {OperationKind::receive_backward, "RECV_B"},
    {OperationKind::overlap, "OVERLAP_F_B"}};

std::string_view symbol_of(OperationKind kind) {
  return std::ranges::find(
             kSymbols, kind, &std::pair<OperationKind, std::string_view>::first)
      ->second;
}

OperationKind kind_of(PipelineActionKind kind) {
  switch (kind) {
    case PipelineActionKind::forward:
      return OperationKind::forward;
    case PipelineActionKind::backward:
      return OperationKind::backward;
    case PipelineActionKind::backward_input:
      return OperationKind::backward_input;
    case PipelineActionKind::backward_weight:
      break;
  }
  return OperationKind::backward_weight;
}

// The operation itself, or the operations that overlap.
Operations parts_of(const PipelineOperation& operation) {
  return operation.kind == OperationKind::overlap ? operation.parts
                                                  : Operations{operation};
}

// The next stages to compute: at least kGatheredStages if that many follow.
std::vector<int> next_stages(const Operations& operations, std::size_t from) {
  std::vector<int> stages;
  for (std::size_t i = from; i < operations.size(); ++i) {
    for (const PipelineOperation& part : parts_of(operations[i])) {
      if (std::ranges::find(stages, part.stage) == stages.end())
        stages.push_back(part.stage);
    }
    if (stages.size() >= kGatheredStages) break;
  }
  return stages;
}

Operations with_gathering(const Operations& operations) {
  Operations all;
  std::set<int> gathered;
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const std::vector<int> next = next_stages(operations, i);
    std::erase_if(gathered, [&](int stage) {
      const bool is_done = std::ranges::find(next, stage) == next.end();
      if (is_done) all.push_back({OperationKind::reshard, stage});
      return is_done;
    });
    for (const int stage : next) {
      if (gathered.insert(stage).second)
        all.push_back({OperationKind::unshard, stage});
    }
    all.push_back(operations[i]);
  }
  for (const int stage : gathered)
    all.push_back({OperationKind::reshard, stage});
  return all;
}

// Places sends and receives, taking each rank's next operation in turn.
class Messages {
 public:
  Messages(
      const PipelineStagePlaces& places,
      const std::vector<Operations>& operations)
      : places_(places),
        operations_(operations),
        next_(operations.size(), 0),
        placed_(operations.size()),
        seen_(operations.size()) {}

  std::vector<Operations> place() {
    while (advance_all()) {
    }
    for (std::size_t rank = 0; rank < next_.size(); ++rank) {
      if (next_[rank] == operations_[rank].size()) continue;
      throw InternalError(format(
          "[planning] {} on rank {} waits forever",
          text_of(operations_[rank][next_[rank]]),
          rank));
    }
    return std::move(placed_);
  }

 private:
  bool advance_all() {
    bool has_moved = false;
    for (std::size_t rank = 0; rank < next_.size(); ++rank) {
      if (next_[rank] == operations_[rank].size()) continue;
      const PipelineOperation& operation = operations_[rank][next_[rank]];
      const Operations parts = parts_of(operation);
      if (!std::ranges::all_of(parts, [&](const auto& part) {
            return is_ready(part, seen_[rank]);
          })) {
        continue;
      }
      placed_[rank].push_back(operation);
      for (const PipelineOperation& part : parts) send(part, rank);
      ++next_[rank];
      has_moved = true;
    }
    return has_moved;
  }

  // Whether the input has arrived, or was computed on the rank itself.
  [[nodiscard]] bool is_ready(
      const PipelineOperation& part,
      const std::set<PipelineOperation>& seen) const {
    const auto has = [&](OperationKind kind, int stage) {
      return seen.contains({kind, stage, part.micro_batch});
    };
    if (part.kind == OperationKind::forward && part.stage > 0) {
      return has(OperationKind::receive_forward, part.stage) ||
          has(OperationKind::forward, part.stage - 1);
    }
    const bool gives_input = part.kind == OperationKind::backward ||
        part.kind == OperationKind::backward_input;
    if (gives_input && part.stage + 1 < places_.num_stages()) {
      return has(OperationKind::receive_backward, part.stage) ||
          has(OperationKind::backward_input, part.stage + 1) ||
          has(OperationKind::backward, part.stage + 1);
    }
    return true;
  }

  void send(const PipelineOperation& part, std::size_t rank) {
    seen_[rank].insert(part);
    const bool is_forward = part.kind == OperationKind::forward;
    if (!is_forward && part.kind != OperationKind::backward &&
        part.kind != OperationKind::backward_input) {
      return;
    }
    const int to = part.stage + (is_forward ? 1 : -1);
    if (to < 0 || to == places_.num_stages()) return;
    const auto taker = static_cast<std::size_t>(places_.rank_of(to));
    if (taker == rank) return;
    add(rank,
        {is_forward ? OperationKind::send_forward
                    : OperationKind::send_backward,
         part.stage,
         part.micro_batch});
    add(taker,
        {is_forward ? OperationKind::receive_forward
                    : OperationKind::receive_backward,
         to,
         part.micro_batch});
  }

  void add(std::size_t rank, const PipelineOperation& operation) {
    placed_[rank].push_back(operation);
    seen_[rank].insert(operation);
  }

  const PipelineStagePlaces& places_;
  const std::vector<Operations>& operations_;
  std::vector<std::size_t> next_;
  std::vector<Operations> placed_;
  std::vector<std::set<PipelineOperation>> seen_;
};

}  // namespace

std::string text_of(const PipelineOperation& operation) {
  const std::string symbol(symbol_of(operation.kind));
  switch (operation.kind) {
    case OperationKind::overlap: {
      std::vector<std::string> parts;
      for (const PipelineOperation& part : operation.parts)
        parts.push_back(text_of(part));
      return format("({}){}", join(parts, ";"), symbol);
    }
    case OperationKind::unshard:
    case OperationKind::reshard:
    case OperationKind::reduce_gradients:
      return format("{}{}", operation.stage, symbol);
    default:
      return format("{}{}{}", operation.stage, symbol, operation.micro_batch);
  }
}

std::vector<Operations> operations_of(const PipelineSchedule& schedule) {
  std::vector<Operations> all;
  for (int rank = 0; rank < schedule.num_ranks; ++rank) {
    Operations& operations = all.emplace_back();
    bool overlaps = false;
    for (const PipelineAction& action :
         schedule.ranks[static_cast<std::size_t>(rank)]) {
      PipelineOperation operation{
          kind_of(action.kind),
          schedule.stage(rank, action.chunk),
          action.micro_batch};
      if (overlaps) {
        operations.back().parts.push_back(std::move(operation));
      } else if (action.overlaps_next) {
        operations.push_back(
            {OperationKind::overlap, -1, 0, {std::move(operation)}});
      } else {
        operations.push_back(std::move(operation));
      }
      overlaps = action.overlaps_next;
    }
  }
  return all;
}

void add_reductions(
    std::vector<PipelineOperation>& operations,
    int num_micro_batches) {
  Operations all;
  std::map<int, int> num_backwards;
  for (const PipelineOperation& operation : operations) {
    all.push_back(operation);
    for (const PipelineOperation& part : parts_of(operation)) {
      const bool completes = part.kind == OperationKind::backward ||
          part.kind == OperationKind::backward_weight;
      if (completes && ++num_backwards[part.stage] == num_micro_batches)
        all.push_back({OperationKind::reduce_gradients, part.stage});
    }
  }
  operations = std::move(all);
}

std::vector<Operations> operations_with_communication(
    const PipelineSchedule& schedule) {
  std::vector<Operations> all = operations_of(schedule);
  for (Operations& operations : all) {
    operations = with_gathering(operations);
    add_reductions(operations, schedule.num_micro_batches);
  }
  return Messages(schedule, all).place();
}

}  // namespace accelerate::detail
