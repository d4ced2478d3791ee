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
struct TokenPlan {
  /// The token of each row, and its place in the flattened assignments
  /// (tokens x top_k).
  at::Tensor tokens;
  at::Tensor slots;
  /// Number of rows of each rank, by expert: ranks x experts; and the same on
  /// the host.
  at::Tensor counts_of_ranks;
  std::vector<std::vector<std::int64_t>> host_counts_of_ranks;
  /// Number of this rank's rows, by expert.
  std::vector<std::int64_t> counts;
  /// Number of its assignments, by expert, before any were dropped.
  at::Tensor num_assigned;
  std::vector<std::int64_t> assigned;

  [[nodiscard]] std::int64_t num_dropped() const;
};

/// Collective among `ranks`, which exchange their counts. The host waits for the
/// device once, to read all counts: they are sizes of tensors. It waits twice if
/// random tokens are dropped, which the host draws.
///
/// `capacity`: the most rows per expert; negative for no limit.
TokenPlan plan_tokens(
    const Routing& routing,
    std::int64_t num_experts,
    std::int64_t capacity,
    TokenDrop drop,
    const Group& ranks = Group());

/// Returns the most rows per expert for `num_tokens` tokens; negative if the
/// options set no limit.
std::int64_t capacity_of(
    const RouterOptions& options,
    std::int64_t num_experts,
    std::int64_t num_tokens,
    bool is_training);

}  // namespace accelerate::detail
