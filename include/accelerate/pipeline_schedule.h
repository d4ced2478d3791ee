#pragma once

#include <string_view>

#include <accelerate/export.h>

namespace accelerate {

/// The order in which the ranks of a pipeline compute. num_chunks is
/// PipelineOptions::num_chunks; names are PyTorch's and the papers'.
enum class PipelineScheduleKind {
  /// "GPipe": all forwards, then all backwards.
  gpipe,
  /// "1F1B": a backward as soon as possible, so that a rank keeps the
  /// activations of at most as many micro-batches as there are ranks.
  one_f_one_b,
  /// "Interleaved1F1B": 1F1B with num_chunks stages per rank, which divides the
  /// idle time by their number, for more messages.
  interleaved_1f1b,
  /// "LoopedBFS": num_chunks stages per rank, each of which computes all
  /// micro-batches before the next one does: the activations of all are kept.
  looped_bfs,
  /// "ZBH1": 1F1B in which gradients of weights fill the idle time.
  zero_bubble,
  /// "InterleavedZeroBubble": ZBH1 with num_chunks stages per rank.
  interleaved_zero_bubble,
  /// "ZBVZeroBubble": ZBH1 with two stages per rank, the second ones in reverse
  /// order, so that the last stage is on the first rank. Almost no idle time if
  /// a forward takes as long as each half of a backward.
  zero_bubble_v,
  /// "DualPipeV": the placement of ZBVZeroBubble, with forwards of one stage
  /// paired with backwards of the other. Needs at least one micro-batch per
  /// stage.
  dual_pipe_v,
};

/// The kind with that name, ignoring case. Throws ConfigError, listing the
/// names, for any other.
ACCELERATE_API PipelineScheduleKind
parse_pipeline_schedule(std::string_view name);
/// Name of a kind, such as "1F1B".
ACCELERATE_API std::string_view name_of(PipelineScheduleKind kind);

}  // namespace accelerate
