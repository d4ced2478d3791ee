#include "parallel/context/visible_tiles.h"

#include <algorithm>

namespace accelerate::detail {

namespace {

// Number of positions of `rank` below `end`. Positions are in ascending order,
// so these are its first ones.
std::int64_t
count_below(const SequenceShards& shards, int rank, std::int64_t end) {
  std::int64_t count = 0;
  for (const PositionRange& range : shards.ranges(rank))
    count += std::clamp<std::int64_t>(end - range.begin, 0, range.length);
  return count;
}

}  // namespace

std::vector<VisibleTile> visible_tiles(
    const SequenceShards& shards,
    int query_rank,
    int key_rank,
    bool is_causal) {
  const std::int64_t keys = count_below(shards, key_rank, shards.length());
  if (keys == 0) return {};
  if (!is_causal || query_rank == key_rank)
    return {{0, shards.local_length(), keys, is_causal}};
  // Ranges of different ranks do not overlap, so all queries of a range see the
  // same keys.
  std::vector<VisibleTile> tiles;
  std::int64_t first_query = 0;
  for (const PositionRange& range : shards.ranges(query_rank)) {
    const std::int64_t visible =
        std::min(keys, count_below(shards, key_rank, range.begin));
    if (visible > 0 && !tiles.empty() && tiles.back().num_keys == visible) {
      tiles.back().num_queries += range.length;
    } else if (visible > 0) {
      tiles.push_back({first_query, range.length, visible, false});
    }
    first_query += range.length;
  }
  return tiles;
}

std::int64_t num_visible_keys(
    const SequenceShards& shards,
    int query_rank,
    int key_rank,
    bool is_causal) {
  std::int64_t count = 0;
  for (const VisibleTile& tile :
       visible_tiles(shards, query_rank, key_rank, is_causal))
    count = std::max(count, tile.num_keys);
  return count;
}

}  // namespace accelerate::detail
