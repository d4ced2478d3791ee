#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/experts.h>

namespace accelerate::detail {

/// Which tokens go to which expert: one row for each assignment that is not
/// dropped, sorted by expert, and by token within each expert.
struct TokenPlan {
  /// The token of each row, and its place in the flattened assignments
  /// (tokens x top_k); int64, on the tokens' device.
  at::Tensor tokens;
  at::Tensor slots;
  /// Number of rows, by expert.
  std::vector<std::int64_t> counts;
  /// Number of assignments, by expert, before any were dropped.
  std::vector<std::int64_t> assigned;

  [[nodiscard]] std::int64_t num_dropped() const;
};

/// `capacity`: the most rows per expert; negative for no limit.
TokenPlan plan_tokens(
    const Routing& routing,
    std::int64_t num_experts,
    std::int64_t capacity,
    TokenDrop drop);

/// Returns the most rows per expert for `num_tokens` tokens; negative if the
/// options set no limit.
std::int64_t capacity_of(
    const RouterOptions& options,
    std::int64_t num_experts,
    std::int64_t num_tokens,
    bool is_training);

}  // namespace accelerate::detail
