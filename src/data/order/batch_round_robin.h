#pragma once

#include <algorithm>
#include <cstdint>

namespace accelerate::detail {

/// Deals batches of any size to the ranks in turn, by the rules of Accelerate's
/// BatchSamplerShard without a batch size.
struct BatchRoundRobin {
  std::int64_t num_batches = 0;
  /// Number of batches that were already read.
  std::int64_t first = 0;
  int rank = 0;
  int count = 1;
  /// Drops a round that does not have a batch for every rank.
  bool drop_last = false;
  /// Gives ranks without a batch in the last round one of the first batches.
  bool even_batches = true;

  /// Number of batches of this rank.
  [[nodiscard]] std::int64_t size() const {
    const std::int64_t num_left =
        std::max<std::int64_t>(num_batches - first, 0);
    const std::int64_t rest = num_left % count;
    const bool has_one_more =
        rest > 0 && !drop_last && (even_batches || rank < rest);
    return num_left / count + (has_one_more ? 1 : 0);
  }
  /// Index, among all batches, of this rank's batch `index`.
  [[nodiscard]] std::int64_t batch(std::int64_t index) const {
    return (first + index * count + rank) % num_batches;
  }
  /// Number of batches in the round of `index` that are not repetitions.
  [[nodiscard]] std::int64_t num_real(std::int64_t index) const {
    return std::min<std::int64_t>(num_batches - first - index * count, count);
  }
};

}  // namespace accelerate::detail
