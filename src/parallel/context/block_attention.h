#pragma once

#include <cstdint>
#include <functional>

#include <ATen/core/Tensor.h>

#include "parallel/context/visible_tiles.h"

namespace accelerate::detail {

// In this room's attention, tensors are B x H x L x E: batch, heads, positions,
// elements of a head. Keys and values may have fewer heads, each of which
// serves an equal number of consecutive query heads (grouped-query attention).

/// Which keys of a block its queries may attend to, and which of the resulting
/// weights are dropped. All functions get a range of the block's query rows,
/// counted from its first, and return tensors that broadcast to B x H x rows x
/// keys.
struct BlockRules {
  using Rows =
      std::function<at::Tensor(std::int64_t first, std::int64_t count)>;

  /// Bool (true: attends) or floating (added to the scores); unset if all keys
  /// are attended to.
  Rows mask = nullptr;
  /// Factors of the weights: 0, or 1 / (1 - dropout_p). Unset without dropout.
  Rows dropout = nullptr;

  [[nodiscard]] bool has_any() const { return mask || dropout; }
};

/// The inputs of one tile: `key` and `value` have exactly the tile's keys,
/// `query` its queries.
struct AttentionBlock {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
  double scale = 1;
  bool is_causal = false;
  BlockRules rules = {};
};

/// The attention of a single block. `logsumexp` is B x H x L in the dtype of
/// accumulation, -inf for queries that attend to no key; their output is 0.
struct BlockOutput {
  at::Tensor output;
  at::Tensor logsumexp;
};

/// Gradients in the dtype of accumulation.
struct BlockGradients {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
};

/// Returns float, or double for double.
at::ScalarType accumulation_dtype(at::ScalarType dtype);

BlockOutput attend(const AttentionBlock& block);

/// `whole` has the output and logsumexp of the whole attention, for the block's
/// queries: the gradient needs nothing else from the other blocks (Dao et al.,
/// FlashAttention, 2022, algorithm 4; Liu et al., Ring Attention, 2023).
BlockGradients attend_backward(
    const AttentionBlock& block,
    const at::Tensor& grad_output,
    const BlockOutput& whole);

/// Merges a block's attention into that of the previous blocks, in place; both
/// are in the dtype of accumulation.
void merge_into(const BlockOutput& whole, const BlockOutput& block);

}  // namespace accelerate::detail
