#include "planning/pipeline/schedule.h"

#include <algorithm>
#include <array>
#include <cctype>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "planning/pipeline/orders.h"

namespace accelerate::detail {

namespace {

void require_sizes(
    PipelineScheduleKind kind,
    int num_ranks,
    int num_micro_batches,
    int num_chunks) {
  if (num_ranks < 1 || num_micro_batches < 1 || num_chunks < 1) {
    throw ConfigError(format(
        "[planning] a pipeline's ranks, chunks per rank and micro-batches must "
        "be at least 1, but are {}, {} and {}",
        num_ranks,
        num_chunks,
        num_micro_batches));
  }
  const std::optional<int> fixed = fixed_chunks_of(kind);
  if (num_chunks != fixed.value_or(num_chunks)) {
    throw ConfigError(format(
        "[planning] {} needs {} of layers per rank, not {}; use {}, or set "
        "num_chunks to {}",
        name_of(kind),
        *fixed == 1 ? "one chunk" : "two chunks",
        num_chunks,
        *fixed == 1 ? "Interleaved1F1B" : "1F1B or Interleaved1F1B",
        *fixed));
  }
  const int num_stages = num_ranks * num_chunks;
  if (kind == PipelineScheduleKind::dual_pipe_v &&
      num_micro_batches < num_stages) {
    throw ConfigError(format(
        "[planning] DualPipeV needs at least as many micro-batches as there "
        "are stages, which are {}, not {}; use more, or ZBVZeroBubble",
        num_stages,
        num_micro_batches));
  }
}

PipelineSlots
order_of(PipelineScheduleKind kind, int rank, int p, int m, int num_chunks) {
  switch (kind) {
    case PipelineScheduleKind::gpipe:
      return gpipe_order(rank, p, m);
    case PipelineScheduleKind::one_f_one_b:
      return one_f_one_b_order(rank, p, m);
    case PipelineScheduleKind::interleaved_1f1b:
    case PipelineScheduleKind::interleaved_zero_bubble:
      return interleaved_order(
          rank,
          p,
          m,
          num_chunks,
          kind == PipelineScheduleKind::interleaved_zero_bubble);
    case PipelineScheduleKind::looped_bfs:
      return looped_bfs_order(rank, p, m, num_chunks);
    case PipelineScheduleKind::zero_bubble:
      return zero_bubble_order(rank, p, m);
    case PipelineScheduleKind::zero_bubble_v:
      return zero_bubble_v_order(rank, p, m);
    case PipelineScheduleKind::dual_pipe_v:
      return dual_pipe_v_order(rank, p, m);
  }
  throw InternalError("[planning] a schedule must have an order, but has none");
}

}  // namespace

int PipelineStagePlaces::stage(int rank, int chunk) const {
  if (placement == PipelinePlacement::v && chunk == 1)
    return 2 * num_ranks - 1 - rank;
  return chunk * num_ranks + rank;
}

int PipelineStagePlaces::rank_of(int stage) const {
  if (placement == PipelinePlacement::v && stage >= num_ranks)
    return 2 * num_ranks - 1 - stage;
  return stage % num_ranks;
}

std::optional<int> fixed_chunks_of(PipelineScheduleKind kind) {
  switch (kind) {
    case PipelineScheduleKind::gpipe:
    case PipelineScheduleKind::one_f_one_b:
    case PipelineScheduleKind::zero_bubble:
      return 1;
    case PipelineScheduleKind::zero_bubble_v:
    case PipelineScheduleKind::dual_pipe_v:
      return 2;
    case PipelineScheduleKind::interleaved_1f1b:
    case PipelineScheduleKind::looped_bfs:
    case PipelineScheduleKind::interleaved_zero_bubble:
      break;
  }
  return std::nullopt;
}

std::vector<PipelineSlots> make_pipeline_slots(
    PipelineScheduleKind kind,
    int num_ranks,
    int num_micro_batches,
    int num_chunks) {
  require_sizes(kind, num_ranks, num_micro_batches, num_chunks);
  std::vector<PipelineSlots> orders;
  for (int rank = 0; rank < num_ranks; ++rank) {
    orders.push_back(
        order_of(kind, rank, num_ranks, num_micro_batches, num_chunks));
  }
  return kind == PipelineScheduleKind::interleaved_zero_bubble
      ? with_waits(orders, num_chunks)
      : orders;
}

PipelineSchedule make_pipeline_schedule(
    PipelineScheduleKind kind,
    int num_ranks,
    int num_micro_batches,
    int num_chunks) {
  const auto orders =
      make_pipeline_slots(kind, num_ranks, num_micro_batches, num_chunks);
  const bool is_v = kind == PipelineScheduleKind::zero_bubble_v ||
      kind == PipelineScheduleKind::dual_pipe_v;
  PipelineSchedule schedule;
  schedule.num_ranks = num_ranks;
  schedule.num_chunks = num_chunks;
  schedule.placement = is_v ? PipelinePlacement::v : PipelinePlacement::loop;
  schedule.num_micro_batches = num_micro_batches;
  for (const PipelineSlots& slots : orders) {
    auto& actions = schedule.ranks.emplace_back();
    for (const auto& slot : slots) {
      if (slot) actions.push_back(*slot);
    }
  }
  return schedule;
}

PipelineSchedule make_partial_schedule(
    PipelineScheduleKind kind,
    int num_ranks,
    int num_micro_batches,
    int num_chunks) {
  const bool has_too_few = kind == PipelineScheduleKind::dual_pipe_v &&
      num_micro_batches < num_ranks * num_chunks;
  return make_pipeline_schedule(
      has_too_few ? PipelineScheduleKind::zero_bubble_v : kind,
      num_ranks,
      num_micro_batches,
      num_chunks);
}

}  // namespace accelerate::detail

namespace accelerate {

namespace {

constexpr std::array<std::string_view, 8> kNames{
    "GPipe",
    "1F1B",
    "Interleaved1F1B",
    "LoopedBFS",
    "ZBH1",
    "InterleavedZeroBubble",
    "ZBVZeroBubble",
    "DualPipeV"};

bool is_equal_but_for_case(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, [](char left, char right) {
    return std::tolower(static_cast<unsigned char>(left)) ==
        std::tolower(static_cast<unsigned char>(right));
  });
}

}  // namespace

PipelineScheduleKind parse_pipeline_schedule(std::string_view name) {
  const auto found = std::ranges::find_if(kNames, [&](std::string_view known) {
    return is_equal_but_for_case(known, name);
  });
  if (found != kNames.end())
    return static_cast<PipelineScheduleKind>(found - kNames.begin());
  throw ConfigError(detail::format(
      "[planning] \"{}\" is not a pipeline schedule; use {}",
      name,
      detail::join(
          std::vector<std::string>(kNames.begin(), kNames.end()), ", ")));
}

std::string_view name_of(PipelineScheduleKind kind) {
  return kNames[static_cast<std::size_t>(kind)];
}

}  // namespace accelerate
