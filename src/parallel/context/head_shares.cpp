#include "parallel/context/head_shares.h"

namespace accelerate::detail {

std::vector<std::int64_t> HeadShare::key_of_each(
    std::int64_t group_size) const {
  std::vector<std::int64_t> keys;
  for (std::int64_t head = first; head < first + count; ++head)
    keys.push_back(head / group_size - first_key);
  return keys;
}

std::vector<HeadShare> divide_heads(
    std::int64_t num_heads,
    std::int64_t num_key_heads,
    int num_ranks) {
  const std::int64_t group_size = num_heads / num_key_heads;
  std::vector<HeadShare> shares;
  std::int64_t first = 0;
  for (int rank = 0; rank < num_ranks; ++rank) {
    HeadShare share{first, num_heads / num_ranks};
    if (rank < num_heads % num_ranks) ++share.count;
    first += share.count;
    share.first_key = share.first / group_size;
    share.key_count =
        share.count == 0 ? 0 : (first - 1) / group_size + 1 - share.first_key;
    shares.push_back(share);
  }
  return shares;
}

}  // namespace accelerate::detail
