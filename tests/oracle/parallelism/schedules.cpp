// The orders of pipeline schedules.
#include <optional>
#include <string>

#include <accelerate/error.h>

#include "oracle/parallelism/parallelism.h"
#include "planning/pipeline/operations.h"
#include "planning/pipeline/orders.h"

namespace accelerate::oracle::topic_parallelism {

namespace schedules_detail {

using detail::PipelineOperation;
using detail::PipelineSchedule;

// A rank's actions, slot by slot: a slot has one action, or two that overlap.
Json slots_of(
    const detail::PipelineSlots& slots,
    const std::vector<PipelineOperation>& operations) {
  Json texts = Json::array();
  std::size_t next = 0;
  bool overlaps = false;
  for (const auto& slot : slots) {
    if (!slot) {
      texts.push_back(nullptr);
    } else if (!overlaps) {
      texts.push_back(detail::text_of(operations[next++]));
    }
    overlaps = slot && slot->overlaps_next;
  }
  return texts;
}

Json texts_of(const std::vector<PipelineOperation>& operations) {
  Json texts = Json::array();
  for (const auto& operation : operations)
    texts.push_back(detail::text_of(operation));
  return texts;
}

}  // namespace schedules_detail

Json order_schedule(const Json& input) {
  using namespace schedules_detail;
  const std::string name = input.at("schedule");
  const int ranks = input.at("num_processes");
  const int micro_batches = input.at("microbatches");
  const int chunks = input.at("stages_per_rank");
  Json outcome;
  try {
    const auto kind =
        parse_pipeline_schedule(name.substr(std::string("Schedule").size()));
    const PipelineSchedule schedule =
        detail::make_pipeline_schedule(kind, ranks, micro_batches, chunks);
    auto operations = detail::operations_of(schedule);
    // PyTorch prints orders with one stage per rank without waits, but with
    // reductions.
    if (detail::fixed_chunks_of(kind) == 1) {
      for (auto& own : operations) {
        detail::add_reductions(own, micro_batches);
        outcome["order"].push_back(texts_of(own));
      }
      return outcome;
    }
    const auto slots =
        detail::make_pipeline_slots(kind, ranks, micro_batches, chunks);
    for (std::size_t rank = 0; rank < operations.size(); ++rank)
      outcome["order"].push_back(slots_of(slots[rank], operations[rank]));
    for (const auto& own : detail::operations_with_communication(schedule))
      outcome["order_with_communication"].push_back(texts_of(own));
  } catch (const ConfigError& error) {
    outcome = {{"error", "ValueError"}, {"message", error.what()}};
  }
  return outcome;
}

bool forwards_are_numbered_from_0(
    const Json& input,
    const Json&,
    Json& expected) {
  if (input.at("kind") != "schedule" || input.at("schedule") != "Schedule1F1B")
    return false;
  bool applies = false;
  for (Json& rank : expected["order"]) {
    int next = 0;
    for (Json& text : rank) {
      const std::string action = text;
      const auto place = action.find('F');
      if (place == std::string::npos) continue;
      text = action.substr(0, place + 1) + std::to_string(next++);
      applies |= text != action;
    }
  }
  return applies;
}

bool any_number_of_micro_batches(
    const Json& input,
    const Json& found,
    Json& expected) {
  if (input.at("kind") != "schedule" || !expected.contains("message") ||
      found.contains("message")) {
    return false;
  }
  const std::string message = expected.at("message");
  if (message.find("multiple of the number of rounds") == message.npos &&
      message.find("greater than or equal to the number of stages") ==
          message.npos) {
    return false;
  }
  expected = found;
  return true;
}

}  // namespace accelerate::oracle::topic_parallelism
