#pragma once

#include <optional>
#include <vector>

#include "planning/pipeline/schedule.h"

namespace accelerate::detail {

/// A rank's action in each time slot, where a forward and each half of a
/// backward take one slot; nullopt while it waits. Execution depends only on
/// the order; slots are for drawings.
using PipelineSlots = std::vector<std::optional<PipelineAction>>;

/// The orders of all ranks; see make_pipeline_schedule().
std::vector<PipelineSlots> make_pipeline_slots(
    PipelineScheduleKind kind,
    int num_ranks,
    int num_micro_batches,
    int num_chunks = 1);

// Orders of one of `p` ranks with `m` micro-batches, as in PyTorch's
// torch.distributed.pipelining, slots included. Only the forwards of
// one_f_one_b are numbered differently: PyTorch prints them wrong, but runs
// them right.

PipelineSlots gpipe_order(int rank, int p, int m);
PipelineSlots one_f_one_b_order(int rank, int p, int m);
PipelineSlots looped_bfs_order(int rank, int p, int m, int num_chunks);

/// ZB-H1, which PyTorch does not have.
PipelineSlots zero_bubble_order(int rank, int p, int m);

/// Rounds of about `p` micro-batches, in each of which a rank computes chunk
/// after chunk. If the rounds do not divide the micro-batches, which PyTorch
/// refuses, the first rounds have one more. `divides_backward`: ZB1P
/// (InterleavedZeroBubble).
PipelineSlots interleaved_order(
    int rank,
    int p,
    int m,
    int num_chunks,
    bool divides_backward);

/// Adds slots to the orders of all ranks where a forward would come before its
/// input.
std::vector<PipelineSlots> with_waits(
    const std::vector<PipelineSlots>& orders,
    int num_chunks);

/// ZB-V: two chunks per rank, with the stages of the second chunk in reverse
/// order, so that the last stage is on the first rank (Qi et al., 2023, section
/// 6).
PipelineSlots zero_bubble_v_order(int rank, int p, int m);

/// DualPipeV (DeepSeek-AI, 2024): placed like ZB-V, with forwards of one chunk
/// beside backwards of the other. Needs at least 2 p micro-batches.
PipelineSlots dual_pipe_v_order(int rank, int p, int m);

}  // namespace accelerate::detail
