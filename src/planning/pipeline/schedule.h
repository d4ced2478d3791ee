#pragma once

#include <optional>
#include <vector>

#include <accelerate/pipeline_schedule.h>

namespace accelerate::detail {

/// What a pipeline rank computes for one micro-batch. `backward` is a whole
/// backward; schedules that postpone the gradients of weights split it.
enum class PipelineActionKind {
  forward,
  backward,
  backward_input,
  backward_weight,
};

struct PipelineAction {
  PipelineActionKind kind = PipelineActionKind::forward;
  /// Which of its chunks of layers the rank computes, starting at 0.
  int chunk = 0;
  int micro_batch = 0;
  /// The action is meant to overlap with the next one.
  bool overlaps_next = false;

  friend bool operator==(const PipelineAction&, const PipelineAction&) =
      default;
};

/// How stages are assigned to ranks.
enum class PipelinePlacement {
  /// Chunk c of rank r of R is stage c * R + r.
  loop,
  /// Chunk 0 as in `loop`; chunk 1 of rank r is stage 2 R - 1 - r, so the last
  /// stage is on the first rank.
  v,
};

struct PipelineStagePlaces {
  int num_ranks = 1;
  int num_chunks = 1;  ///< per rank
  PipelinePlacement placement = PipelinePlacement::loop;

  [[nodiscard]] int num_stages() const { return num_ranks * num_chunks; }
  [[nodiscard]] int stage(int rank, int chunk) const;
  [[nodiscard]] int rank_of(int stage) const;
  [[nodiscard]] int chunk_of(int stage) const { return stage / num_ranks; }
  /// The rank that computes losses.
  [[nodiscard]] int last_rank() const { return rank_of(num_stages() - 1); }
};

/// The actions of each rank of a pipeline, in order. For each micro-batch, a
/// stage takes the output of the previous stage and returns its gradient.
struct PipelineSchedule : PipelineStagePlaces {
  int num_micro_batches = 1;
  std::vector<std::vector<PipelineAction>> ranks = {};
};

/// The number of chunks per rank that a kind requires; nullopt if any.
[[nodiscard]] std::optional<int> fixed_chunks_of(PipelineScheduleKind kind);

/// Makes a schedule.
///
/// gpipe: all forwards, then all backwards (Huang et al., 2019). one_f_one_b:
/// one warm-up forward per following stage, then a backward after each forward
/// (Narayanan et al., 2021), so that a rank keeps activations of at most
/// `num_ranks` micro-batches. interleaved_1f1b: 1F1B with several chunks per
/// rank (Narayanan et al., 2021), which divides the idle time by their number.
/// looped_bfs: all micro-batches through a chunk before the next chunk
/// (Lamy-Poirier, 2023), so that shards are gathered and gradients averaged
/// once per chunk. zero_bubble: ZB-H1 (Qi et al., 2023), 1F1B in which
/// gradients of weights fill idle time; every rank keeps as many activations as
/// the first rank of 1F1B. interleaved_zero_bubble: zero_bubble with chunks.
/// zero_bubble_v: ZB-V of the same paper, with two chunks in V placement, and
/// no idle time if forwards and both halves of backwards take equally long.
/// dual_pipe_v: DualPipeV (DeepSeek-AI, 2024), forwards of one chunk beside
/// backwards of the other.
///
/// Throws ConfigError for fewer than one rank, chunk or micro-batch; for a
/// number of chunks that the kind does not allow; and for fewer micro-batches
/// than stages in dual_pipe_v.
PipelineSchedule make_pipeline_schedule(
    PipelineScheduleKind kind,
    int num_ranks,
    int num_micro_batches,
    int num_chunks = 1);

/// Makes the schedule of a batch with fewer micro-batches than usual. If the
/// kind needs more, uses the order of another kind with the same placement.
PipelineSchedule make_partial_schedule(
    PipelineScheduleKind kind,
    int num_ranks,
    int num_micro_batches,
    int num_chunks);

}  // namespace accelerate::detail
