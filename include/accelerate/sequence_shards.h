#pragma once

#include <cstdint>
#include <vector>

#include <accelerate/export.h>

namespace accelerate {

/// How a sequence is divided among ranks.
enum class SequenceCut {
  /// Rank r holds the r-th of `num_ranks` equal chunks. With causal attention
  /// the last rank then has the most work, and all others wait for it.
  contiguous,
  /// Rank r holds, of 2 * num_ranks equal chunks, the r-th from the beginning
  /// and the r-th from the end, so that all have the same work in causal
  /// attention.
  zigzag,
};

/// The consecutive positions `begin`, ..., `begin + length - 1`.
struct PositionRange {
  /// The first position.
  std::int64_t begin = 0;
  /// Number of positions.
  std::int64_t length = 0;

  friend bool operator==(const PositionRange&, const PositionRange&) = default;
};

/// Which positions of a sequence each rank holds. All ranks hold the same
/// number; a length that does not divide is padded at its end.
class ACCELERATE_API SequenceShards {
 public:
  /// `length`: number of positions before padding. Throws ConfigError for a
  /// negative length or fewer than one rank.
  SequenceShards(
      std::int64_t length,
      int num_ranks,
      SequenceCut cut = SequenceCut::zigzag);

  /// Number of positions before padding.
  [[nodiscard]] std::int64_t length() const { return length_; }
  /// Number of ranks that share the sequence.
  [[nodiscard]] int num_ranks() const { return num_ranks_; }
  /// How positions are assigned to ranks.
  [[nodiscard]] SequenceCut cut() const { return cut_; }

  /// Number of positions including padding (those from length() on): a multiple
  /// of num_ranks(), or of 2 * num_ranks() with the zigzag cut.
  [[nodiscard]] std::int64_t padded_length() const {
    return local_length_ * num_ranks_;
  }
  /// Number of positions that each rank holds, including padding.
  [[nodiscard]] std::int64_t local_length() const { return local_length_; }

  /// The positions of `rank` in ascending order, as ranges that do not touch:
  /// one or two of them, none if the sequence is empty.
  [[nodiscard]] std::vector<PositionRange> ranges(int rank) const;
  /// The positions of `rank`, one by one.
  [[nodiscard]] std::vector<std::int64_t> positions(int rank) const;

  /// For each position, padding included, its index in the concatenation of all
  /// ranks' shards; indexing the concatenation with it restores the order.
  [[nodiscard]] std::vector<std::int64_t> restore() const;

 private:
  std::int64_t length_;
  int num_ranks_;
  SequenceCut cut_;
  std::int64_t local_length_;
};

}  // namespace accelerate
