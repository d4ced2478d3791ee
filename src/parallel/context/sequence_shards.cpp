#include <accelerate/sequence_shards.h>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate {

namespace {

std::int64_t chunks_per_rank(SequenceCut cut, int num_ranks) {
  return cut == SequenceCut::zigzag && num_ranks > 1 ? 2 : 1;
}

}  // namespace

SequenceShards::SequenceShards(
    std::int64_t length,
    int num_ranks,
    SequenceCut cut)
    : length_(length), num_ranks_(num_ranks), cut_(cut) {
  if (length < 0 || num_ranks < 1) {
    throw ConfigError(detail::format(
        "[parallel] a sequence of {} positions cannot be divided among {} "
        "ranks; pass a length of at least 0 and at least 1 rank",
        length,
        num_ranks));
  }
  const std::int64_t per_rank = chunks_per_rank(cut, num_ranks);
  const std::int64_t chunks = per_rank * num_ranks;
  local_length_ = (length + chunks - 1) / chunks * per_rank;
}

std::vector<PositionRange> SequenceShards::ranges(int rank) const {
  if (local_length_ == 0) return {};
  if (chunks_per_rank(cut_, num_ranks_) == 1)
    return {{rank * local_length_, local_length_}};
  const std::int64_t chunk = local_length_ / 2;
  const std::int64_t tail = (2 * num_ranks_ - 1 - rank) * chunk;
  // The last rank's two chunks are adjacent.
  if (rank == num_ranks_ - 1) return {{rank * chunk, local_length_}};
  return {{rank * chunk, chunk}, {tail, chunk}};
}

std::vector<std::int64_t> SequenceShards::positions(int rank) const {
  std::vector<std::int64_t> all;
  all.reserve(static_cast<std::size_t>(local_length_));
  for (const PositionRange& range : ranges(rank)) {
    for (std::int64_t i = 0; i < range.length; ++i)
      all.push_back(range.begin + i);
  }
  return all;
}

std::vector<std::int64_t> SequenceShards::restore() const {
  std::vector<std::int64_t> index(static_cast<std::size_t>(padded_length()));
  std::int64_t next = 0;
  for (int rank = 0; rank < num_ranks_; ++rank) {
    for (const std::int64_t position : positions(rank))
      index[static_cast<std::size_t>(position)] = next++;
  }
  return index;
}

}  // namespace accelerate
