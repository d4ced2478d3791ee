#pragma once

#include <algorithm>
#include <cstdint>

namespace accelerate::detail {

/// Whole batches, of whatever sizes, to the ranks in turn. The rules are those
/// of Accelerate's BatchSamplerShard without a batch size.
struct BatchTurns {
  std::int64_t num_batches = 0;
  /// Batches that were read already.
  std::int64_t first = 0;
  int rank = 0;
  int count = 1;
  /// Leaves out a round that has no batch for every rank.
  bool drop_last = false;
  /// Gives ranks without a batch in the last round one of the first.
  bool even_batches = true;

  /// Batches of this rank.
  [[nodiscard]] std::int64_t size() const {
    const std::int64_t num_left =
        std::max<std::int64_t>(num_batches - first, 0);
    const std::int64_t rest = num_left % count;
    const bool has_one_more =
        rest > 0 && !drop_last && (even_batches || rank < rest);
    return num_left / count + (has_one_more ? 1 : 0);
  }
  /// Which of all batches is this rank's batch `index`.
  [[nodiscard]] std::int64_t batch(std::int64_t index) const {
    return (first + index * count + rank) % num_batches;
  }
  /// How many of the batches of the round of `index` are no repetitions.
  [[nodiscard]] std::int64_t num_real(std::int64_t index) const {
    return std::min<std::int64_t>(num_batches - first - index * count, count);
  }
};

}  // namespace accelerate::detail
