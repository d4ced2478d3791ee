#pragma once

#include <cstdint>
#include <vector>

#include <accelerate/sequence_shards.h>

namespace accelerate::detail {

/// Consecutive rows of one rank's queries that attend to the same keys of
/// another rank (or of itself): the first `num_keys` of the keys that rank
/// holds.
struct VisibleTile {
  std::int64_t first_query = 0;
  std::int64_t num_queries = 0;
  std::int64_t num_keys = 0;
  /// True if query i of the tile attends to the first i + 1 keys only.
  bool is_causal = false;

  friend bool operator==(const VisibleTile&, const VisibleTile&) = default;
};

/// Returns the pairs of queries of `query_rank` and keys of `key_rank` that
/// attention computes. Padding is excluded from keys; padded queries attend to
/// real keys.
std::vector<VisibleTile> visible_tiles(
    const SequenceShards& shards,
    int query_rank,
    int key_rank,
    bool is_causal);

/// Returns how many keys of `key_rank`, from its first, any query of
/// `query_rank` attends to.
std::int64_t num_visible_keys(
    const SequenceShards& shards,
    int query_rank,
    int key_rank,
    bool is_causal);

}  // namespace accelerate::detail
