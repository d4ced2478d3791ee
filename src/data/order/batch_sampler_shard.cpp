#include "data/order/batch_sampler_shard.h"

#include <algorithm>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

std::int64_t rank_batch_size_of(const BatchSamplerShardOptions& options) {
  if (options.batch_size < 1 || options.num_samples < 0) {
    throw ConfigError(format(
        "[data] batch_size must be at least 1, but is {} for {} samples",
        options.batch_size,
        options.num_samples));
  }
  if (options.rank < 0 || options.rank >= options.count) {
    throw ConfigError(format(
        "[data] batch rank {} of {} is impossible",
        options.rank,
        options.count));
  }
  if (!options.split_batches) return options.batch_size;
  if (options.batch_size % options.count != 0) {
    throw ConfigError(format(
        "[data] split_batches cuts batches of {} over {} ranks; make "
        "batch_size a multiple of {}",
        options.batch_size,
        options.count,
        options.count));
  }
  return options.batch_size / options.count;
}

}  // namespace

BatchSamplerShard::BatchSamplerShard(const BatchSamplerShardOptions& options)
    : options_(options),
      rank_batch_size_(rank_batch_size_of(options)),
      round_size_(rank_batch_size_ * options.count),
      is_filled_up_(
          options.even_batches && !options.drop_last && options.count > 1) {
  options_.first =
      std::clamp<std::int64_t>(options_.first, 0, options_.num_samples);
  const std::int64_t num_left = options_.num_samples - options_.first;
  const std::int64_t full_rounds = num_left / round_size_;
  const std::int64_t rest = num_left % round_size_;
  size_ = full_rounds;
  if (rest == 0 || options_.drop_last) return;
  const bool has_share = rest > rank_batch_size_ * options_.rank;
  if (is_filled_up_ || has_share) ++size_;
}

// Rank r gets the r-th part of a round: a batch, or with split_batches a slice
// of one.
std::int64_t BatchSamplerShard::begin_of(std::int64_t index) const {
  return options_.first + index * round_size_ +
      options_.rank * rank_batch_size_;
}

std::vector<std::int64_t> BatchSamplerShard::positions(
    std::int64_t index) const {
  const std::int64_t n = options_.num_samples;
  const std::int64_t begin = begin_of(index);
  std::int64_t end = begin + rank_batch_size_;
  if (!is_filled_up_) end = std::min(end, n);
  std::vector<std::int64_t> positions(
      static_cast<std::size_t>(std::max<std::int64_t>(end - begin, 0)));
  for (std::int64_t p = begin; p < end; ++p) {
    positions[static_cast<std::size_t>(p - begin)] = p < n ? p : (p - n) % n;
  }
  return positions;
}

std::int64_t BatchSamplerShard::remainder(std::int64_t index) const {
  const std::int64_t left =
      options_.num_samples - options_.first - index * round_size_;
  return is_filled_up_ && left < round_size_ ? left : 0;
}

}  // namespace accelerate::detail
