#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

namespace accelerate::detail {

/// Which attention weights are dropped: a function of a seed and of the place
/// of the weight (batch, head, positions of query and key in the sequence), so
/// that the same weights are dropped however the sequence is cut and wherever
/// the weight is computed, in forward and backward.
struct DropoutMask {
  double probability = 0;
  std::uint64_t seed = 0;
  std::int64_t batch = 1;
  std::int64_t num_heads = 1;
  /// The model's index of the first of `num_heads`.
  std::int64_t first_head = 0;

  /// Returns batch x num_heads x queries x keys in host memory, float: 0 where
  /// dropped, else 1 / (1 - probability), or 0 for a probability of 1.
  [[nodiscard]] at::Tensor factors(
      std::span<const std::int64_t> query_positions,
      std::span<const std::int64_t> key_positions) const;
};

}  // namespace accelerate::detail
