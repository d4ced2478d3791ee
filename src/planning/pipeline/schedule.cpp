#include "planning/pipeline/schedule.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include <accelerate/error.h>

#include "base/text.h"
#include "planning/pipeline/simulation.h"

namespace accelerate::detail {

namespace {

using Kind = PipelineActionKind;
using Actions = std::vector<PipelineAction>;

constexpr std::array<std::string_view, 4> kNames{
    "GPipe",
    "1F1B",
    "Interleaved1F1B",
    "ZBH1"};

Actions gpipe(int num_micro_batches) {
  Actions actions;
  for (const Kind kind : {Kind::forward, Kind::backward}) {
    for (int i = 0; i < num_micro_batches; ++i)
      actions.push_back({.kind = kind, .micro_batch = i});
  }
  return actions;
}

// `num_ahead` forwards, then pairs of a forward and a backward, then the
// backwards that are left. Both are counted over all chunks.
template <class Forward, class Backward>
Actions alternate(
    int num_ahead,
    int num_total,
    Forward&& forward,
    Backward&& backward) {
  Actions actions;
  const int ahead = std::min(num_ahead, num_total);
  for (int i = 0; i < ahead; ++i) actions.push_back(forward(i));
  for (int i = ahead; i < num_total; ++i) {
    actions.push_back(forward(i));
    actions.push_back(backward(i - ahead));
  }
  for (int i = num_total - ahead; i < num_total; ++i)
    actions.push_back(backward(i));
  return actions;
}

Actions one_f_one_b(int rank, int num_ranks, int num_micro_batches) {
  return alternate(
      num_ranks - rank - 1,
      num_micro_batches,
      [](int i) {
        return PipelineAction{.kind = Kind::forward, .micro_batch = i};
      },
      [](int i) {
        return PipelineAction{.kind = Kind::backward, .micro_batch = i};
      });
}

// Rounds of as many micro-batches as there are ranks; in each, a rank computes
// chunk after chunk.
Actions
interleaved(int rank, int num_ranks, int num_micro_batches, int num_chunks) {
  const auto of_round = [&](Kind kind, int i) {
    const int round = i / (num_ranks * num_chunks);
    const int in_round = i % (num_ranks * num_chunks);
    const int chunk = in_round / num_ranks;
    return PipelineAction{
        .kind = kind,
        .chunk = kind == Kind::forward ? chunk : num_chunks - 1 - chunk,
        .micro_batch = round * num_ranks + in_round % num_ranks};
  };
  const int total = num_micro_batches * num_chunks;
  const int ahead = 2 * (num_ranks - rank - 1) + (num_chunks - 1) * num_ranks;
  return alternate(
      ahead,
      total,
      [&](int i) { return of_round(Kind::forward, i); },
      [&](int i) { return of_round(Kind::backward, i); });
}

// 1F1B with divided backwards. Rank `rank` computes the gradients of weights
// `rank` micro-batches late, so that those of inputs reach rank 0 sooner and
// every rank keeps as many activations as rank 0.
Actions zero_bubble(int rank, int num_ranks, int num_micro_batches) {
  Actions actions;
  int forwards = 0;
  const auto add = [&](Kind kind, int micro_batch) {
    actions.push_back({.kind = kind, .micro_batch = micro_batch});
  };
  while (forwards < std::min(num_ranks - rank, num_micro_batches))
    add(Kind::forward, forwards++);
  for (int i = 0; i < num_micro_batches; ++i) {
    add(Kind::backward_input, i);
    if (i >= rank) add(Kind::backward_weight, i - rank);
    if (forwards < num_micro_batches) add(Kind::forward, forwards++);
  }
  for (int i = std::max(0, num_micro_batches - rank); i < num_micro_batches;
       ++i)
    add(Kind::backward_weight, i);
  return actions;
}

void require_sizes(
    PipelineScheduleKind kind,
    int num_ranks,
    int num_micro_batches,
    int num_chunks) {
  if (num_ranks < 1 || num_micro_batches < 1 || num_chunks < 1) {
    throw ConfigError(format(
        "[planning] a pipeline of {} ranks with {} chunks each and {} "
        "micro-batches is not possible; each number is at least 1",
        num_ranks,
        num_chunks,
        num_micro_batches));
  }
  const bool is_interleaved = kind == PipelineScheduleKind::interleaved_1f1b;
  if (!is_interleaved && num_chunks > 1) {
    throw ConfigError(format(
        "[planning] {} gives each rank one chunk of layers, not {}; use "
        "Interleaved1F1B, or one chunk",
        name_of(kind),
        num_chunks));
  }
  if (is_interleaved && num_micro_batches % num_ranks != 0) {
    throw ConfigError(format(
        "[planning] Interleaved1F1B needs a multiple of {} micro-batches, one "
        "per rank, not {}; change their number, or use 1F1B",
        num_ranks,
        num_micro_batches));
  }
}

}  // namespace

PipelineScheduleKind parse_pipeline_schedule(std::string_view name) {
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found != kNames.end())
    return static_cast<PipelineScheduleKind>(found - kNames.begin());
  throw ConfigError(format(
      "[planning] \"{}\" is not a schedule of pipelines; use {}",
      name,
      join(std::vector<std::string>(kNames.begin(), kNames.end()), ", ")));
}

std::string_view name_of(PipelineScheduleKind kind) {
  return kNames[static_cast<std::size_t>(kind)];
}

PipelineSchedule make_pipeline_schedule(
    PipelineScheduleKind kind,
    int num_ranks,
    int num_micro_batches,
    int num_chunks) {
  require_sizes(kind, num_ranks, num_micro_batches, num_chunks);
  PipelineSchedule schedule{
      .num_ranks = num_ranks,
      .num_chunks = num_chunks,
      .num_micro_batches = num_micro_batches,
      .ranks = {}};
  for (int rank = 0; rank < num_ranks; ++rank) {
    switch (kind) {
      case PipelineScheduleKind::gpipe:
        schedule.ranks.push_back(gpipe(num_micro_batches));
        break;
      case PipelineScheduleKind::interleaved_1f1b:
        schedule.ranks.push_back(
            interleaved(rank, num_ranks, num_micro_batches, num_chunks));
        break;
      case PipelineScheduleKind::zero_bubble:
        schedule.ranks.push_back(
            zero_bubble(rank, num_ranks, num_micro_batches));
        break;
      case PipelineScheduleKind::one_f_one_b:
        schedule.ranks.push_back(
            one_f_one_b(rank, num_ranks, num_micro_batches));
    }
  }
  return schedule;
}

std::string find_fault(const PipelineSchedule& schedule) {
  // How often each stage computes each micro-batch: forward, whole backward,
  // gradient of the input, gradient of the weights.
  std::map<std::pair<int, int>, std::array<int, 4>> counts;
  for (int rank = 0; rank < schedule.num_ranks; ++rank) {
    for (const auto& action : schedule.ranks[static_cast<std::size_t>(rank)]) {
      auto& count =
          counts[{schedule.stage(rank, action.chunk), action.micro_batch}];
      ++count[static_cast<std::size_t>(action.kind)];
    }
  }
  for (int stage = 0; stage < schedule.num_stages(); ++stage) {
    for (int i = 0; i < schedule.num_micro_batches; ++i) {
      const auto [forward, backward, input, weight] = counts[{stage, i}];
      if (forward == 1 && backward + input == 1 && backward + weight == 1)
        continue;
      return format(
          "stage {} computes micro-batch {} {} times forward, {} times "
          "backward, {} times for its input and {} times for its weights",
          stage,
          i,
          forward,
          backward,
          input,
          weight);
    }
  }
  return simulate_pipeline(schedule, {}).deadlock;
}

}  // namespace accelerate::detail
