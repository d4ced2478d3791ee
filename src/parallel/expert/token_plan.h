#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/experts.h>
#include <accelerate/world.h>

namespace accelerate::detail {

/// Which tokens go to which expert: one row for each assignment that is not
/// dropped, sorted by expert, and by token within each expert. Tensors are
/// int64, on the tokens' device.
///
/// A device's plan with a capacity is padded: each expert has as many rows of a
/// rank as its capacity, which the host knows without the device. Rows that no
/// assignment fills have the first token, and their results are dropped.
struct TokenPlan {
  /// The token of each row, and its place in the flattened assignments
  /// (tokens x top_k): one behind the last for rows that fill up.
  at::Tensor tokens;
  at::Tensor slots;
  bool is_padded = false;
  /// Number of rows of each rank, by expert: ranks x experts; and the same on
  /// the host.
  at::Tensor counts_of_ranks;
  std::vector<std::vector<std::int64_t>> host_counts_of_ranks;
  /// Number of this rank's assignments, by expert, before any were dropped, and
  /// of those that were not.
  at::Tensor num_assigned;
  at::Tensor num_kept;
};

/// Collective among `ranks`, which exchange their counts: sizes of tensors,
/// which the host reads. It waits for the device once, and not at all if the
/// plan is padded.
///
/// `options`: of the router. `is_training`: whether the layer is.
TokenPlan plan_tokens(
    const Routing& routing,
    std::int64_t num_experts,
    const RouterOptions& options,
    bool is_training,
    const Group& ranks = Group());

/// Returns the most rows per expert for `num_tokens` tokens; negative if the
/// options set no limit.
std::int64_t capacity_of(
    const RouterOptions& options,
    std::int64_t num_experts,
    std::int64_t num_tokens,
    bool is_training);

}  // namespace accelerate::detail
