#include <accelerate/samplers.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "data/order/permutation.h"
#include "data/order/sampler_position.h"

namespace accelerate {

BatchSampler::~BatchSampler() = default;

LengthBucketSampler::LengthBucketSampler(
    std::vector<std::int64_t> lengths,
    const LengthBucketOptions& options)
    : lengths_(std::move(lengths)), options_(options) {
  if (options.batch_size < 1 || options.batches_in_pool < 1 ||
      options.max_items.value_or(1) < 1) {
    throw ConfigError(detail::format(
        "[data] batch_size, batches_in_pool and max_items of "
        "LengthBucketSampler must be at least 1, but are {}, {} and {}",
        options.batch_size,
        options.batches_in_pool,
        options.max_items.value_or(1)));
  }
  begin_pass(0, 0);
}

std::int64_t LengthBucketSampler::size() const {
  return static_cast<std::int64_t>(batches_.size());
}

std::vector<std::int64_t> LengthBucketSampler::at(std::int64_t batch) const {
  detail::require_position(batch, std::ssize(batches_));
  return batches_[static_cast<std::size_t>(batch)];
}

void LengthBucketSampler::begin_pass(std::uint64_t seed, std::uint64_t epoch) {
  const auto count = static_cast<std::int64_t>(lengths_.size());
  std::vector<std::int64_t> order(lengths_.size());
  std::iota(order.begin(), order.end(), std::int64_t{0});
  if (options_.shuffle) {
    const detail::Permutation permutation(count, seed, epoch);
    for (std::int64_t& i : order) i = permutation(i);
  }
  const auto length_of = [&](std::int64_t i) {
    return lengths_[static_cast<std::size_t>(i)];
  };
  const std::int64_t pool = options_.batch_size * options_.batches_in_pool;
  batches_.clear();
  for (std::int64_t begin = 0; begin < count; begin += pool) {
    const auto first = order.begin() + begin;
    const auto last = order.begin() + std::min(begin + pool, count);
    // Stable, so equal lengths keep their random order.
    std::stable_sort(first, last, [&](std::int64_t a, std::int64_t b) {
      return length_of(a) < length_of(b);
    });
    std::vector<std::int64_t> batch;
    for (auto i = first; i != last; ++i) {
      // The lengths are sorted, so the newest sample is the longest.
      const std::int64_t items =
          length_of(*i) * static_cast<std::int64_t>(batch.size() + 1);
      const bool is_full =
          static_cast<std::int64_t>(batch.size()) == options_.batch_size ||
          (options_.max_items && items > *options_.max_items);
      if (is_full && !batch.empty())
        batches_.push_back(std::exchange(batch, {}));
      batch.push_back(*i);
    }
    if (!batch.empty()) batches_.push_back(std::move(batch));
  }
  if (!options_.shuffle) return;
  // Shuffles the batches; otherwise lengths would rise and fall through the
  // pass.
  std::vector<std::vector<std::int64_t>> mixed(batches_.size());
  const detail::Permutation permutation(size(), ~seed, epoch);
  for (std::int64_t i = 0; i < size(); ++i) {
    mixed[static_cast<std::size_t>(permutation(i))] =
        std::move(batches_[static_cast<std::size_t>(i)]);
  }
  batches_ = std::move(mixed);
}

}  // namespace accelerate
