#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace accelerate::detail {

/// What a rank of a pipeline computes for one micro-batch. A whole backward is
/// `backward`; schedules that postpone the gradients of weights divide it.
enum class PipelineActionKind {
  forward,
  backward,
  backward_input,
  backward_weight,
};

struct PipelineAction {
  PipelineActionKind kind = PipelineActionKind::forward;
  /// Which of its chunks of layers the rank computes, from 0.
  int chunk = 0;
  int micro_batch = 0;
  /// The schedule means it to be computed beside the next one.
  bool overlaps_next = false;

  friend bool operator==(const PipelineAction&, const PipelineAction&) =
      default;
};

/// Which rank has which stage.
enum class PipelinePlacement {
  /// Chunk c of rank r of R is stage c * R + r.
  loop,
  /// The same for chunk 0, and for chunk 1 stage 2 R - 1 - r: the last stage is
  /// on the first rank.
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

/// What each rank of a pipeline does, in order. A stage takes what the one
/// before it gave for the same micro-batch, and gives back the gradient of it.
struct PipelineSchedule : PipelineStagePlaces {
  int num_micro_batches = 1;
  std::vector<std::vector<PipelineAction>> ranks = {};
};

enum class PipelineScheduleKind {
  gpipe,
  one_f_one_b,
  interleaved_1f1b,
  looped_bfs,
  zero_bubble,
  interleaved_zero_bubble,
  zero_bubble_v,
  dual_pipe_v,
};

/// "GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "ZBH1",
/// "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV", as PyTorch and the
/// papers spell them, in any case. Throws ConfigError listing the names for
/// another one.
PipelineScheduleKind parse_pipeline_schedule(std::string_view name);
std::string_view name_of(PipelineScheduleKind kind);

/// The number of chunks per rank that a kind has; unset if it may be any.
[[nodiscard]] std::optional<int> fixed_chunks_of(PipelineScheduleKind kind);

/// The schedule of a kind.
///
/// gpipe: all forwards, then all backwards (Huang et al., 2019). one_f_one_b: as
/// many forwards as stages follow, then a backward after each forward
/// (Narayanan et al., 2021), so that a rank keeps the activations of at most as
/// many micro-batches as there are ranks. interleaved_1f1b: the same with
/// several chunks per rank (Narayanan et al., 2021), which divides the idle time
/// by their number. looped_bfs: all micro-batches through a chunk before the
/// next one (Lamy-Poirier, 2023), so that shards are gathered and gradients
/// averaged once per chunk. zero_bubble: ZB-H1 (Qi et al., 2023), 1F1B whose
/// weights' gradients fill the time in which a rank would wait; every rank keeps
/// as many activations as the first one of 1F1B. interleaved_zero_bubble: the
/// same with chunks. zero_bubble_v: ZB-V of the same paper, with two chunks in V
/// placement, and no idle time if forwards and both halves of backwards take
/// equally long. dual_pipe_v: DualPipeV (DeepSeek-AI, 2024), forwards of a chunk
/// beside backwards of the other.
///
/// Throws ConfigError for fewer than one rank, chunk or micro-batch; for another
/// number of chunks than the kind has; and for fewer micro-batches than stages
/// in dual_pipe_v.
PipelineSchedule make_pipeline_schedule(
    PipelineScheduleKind kind,
    int num_ranks,
    int num_micro_batches,
    int num_chunks = 1);

/// The same for a batch that has fewer micro-batches than others, in the order
/// of another kind of the same placement where this one needs more.
PipelineSchedule make_partial_schedule(
    PipelineScheduleKind kind,
    int num_ranks,
    int num_micro_batches,
    int num_chunks);

/// Why no run of the schedule could end, or what it computes twice or not at
/// all; empty for a schedule that is right.
std::string find_fault(const PipelineSchedule& schedule);

}  // namespace accelerate::detail
