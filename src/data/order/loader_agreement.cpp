#include "data/order/loader_agreement.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/Functions.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "data/mix.h"

namespace accelerate::detail {

namespace {

// Values that must be equal on all ranks, in this order.
enum Agreed : std::size_t {
  kFlags,
  kBatchSize,
  kDatasetSize,
  kOrderSize,
  kOrder,
  kSeed
};

// Differs with high probability if the samplers of two ranks give different
// orders.
std::int64_t fingerprint(Sampler& sampler, std::uint64_t seed) {
  sampler.begin_pass(seed, 0);
  std::uint64_t sum = 0;
  constexpr std::int64_t kNumProbes = 16;
  const std::int64_t step =
      std::max<std::int64_t>(sampler.size() / kNumProbes, 1);
  for (std::int64_t i = 0; i < sampler.size(); i += step) {
    sum = mix(sum ^ static_cast<std::uint64_t>(sampler.at(i)));
  }
  return static_cast<std::int64_t>(sum);
}

std::int64_t fingerprint(BatchSampler& sampler, std::uint64_t seed) {
  sampler.begin_pass(seed, 0);
  std::uint64_t sum = 0;
  for (std::int64_t batch = 0;
       batch < std::min<std::int64_t>(sampler.size(), 4);
       ++batch) {
    for (const std::int64_t i : sampler.at(batch))
      sum = mix(sum ^ static_cast<std::uint64_t>(i));
  }
  return static_cast<std::int64_t>(sum);
}

// Values in the order of Agreed.
std::vector<std::int64_t> agreed_values(
    const DatasetFacts& dataset,
    const DataLoaderOptions& options,
    const Sampler& sampler,
    std::uint64_t rank_0_seed,
    bool dispatches) {
  std::int64_t flags = 0;
  for (const bool flag :
       {dispatches,
        options.already_sharded,
        *options.split_batches,
        options.drop_last,
        *options.even_batches,
        options.shuffle,
        *options.use_seedable_sampler}) {
    flags = 2 * flags + (flag ? 1 : 0);
  }
  // Data that the loader does not split among the ranks may differ.
  if (dispatches || options.already_sharded) {
    return {flags, options.batch_size, 0, 0, 0, 0};
  }
  const std::uint64_t seed = options.data_seed.value_or(rank_0_seed);
  std::int64_t order_fingerprint = 0;
  if (options.sampler) order_fingerprint = fingerprint(*options.sampler, seed);
  if (options.batch_sampler)
    order_fingerprint = fingerprint(*options.batch_sampler, seed);
  const std::int64_t order_size =
      options.batch_sampler ? options.batch_sampler->size() : sampler.size();
  return {
      flags,
      options.batch_size,
      dataset.num_samples,
      order_size,
      order_fingerprint,
      static_cast<std::int64_t>(seed)};
}

void require_agreement(
    const Group& group,
    const std::vector<std::int64_t>& mine) {
  constexpr std::string_view kRemedy =
      "; give every rank the entire dataset in the same order, which the "
      "loader shards; if the data is sharded already, set already_sharded";
  const std::vector<at::Tensor> all =
      group.all_gather(at::tensor(mine, at::kLong));
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    const auto require_equal = [&](Agreed value,
                                   std::string_view what,
                                   std::string_view remedy) {
      const std::int64_t theirs =
          all[rank].const_data_ptr<std::int64_t>()[value];
      const std::int64_t of_first =
          all[0].const_data_ptr<std::int64_t>()[value];
      if (theirs == of_first) return;
      // These values would mean nothing to a reader.
      const std::string numbers = value == kOrder || value == kFlags
          ? std::string()
          : format(": {} and {}", of_first, theirs);
      throw ConfigError(format(
          "[data] ranks 0 and {} have {}{}{}", rank, what, numbers, remedy));
    };
    require_equal(
        kFlags,
        "different values of one of dispatch_batches, already_sharded, "
        "split_batches, drop_last, even_batches, shuffle and "
        "use_seedable_sampler",
        "; make them equal");
    require_equal(
        kBatchSize, "different values of batch_size", "; make them equal");
    require_equal(kDatasetSize, "datasets of different sizes", kRemedy);
    require_equal(kOrderSize, "samplers of different sizes", kRemedy);
    require_equal(kOrder, "samplers that give different orders", kRemedy);
    require_equal(kSeed, "different values of data_seed", "; make them equal");
  }
}

}  // namespace

void require_equal_loaders(
    const Group& group,
    const DatasetFacts& dataset,
    const DataLoaderOptions& options,
    const Sampler& sampler,
    std::uint64_t rank_0_seed,
    bool dispatches) {
  require_agreement(
      group, agreed_values(dataset, options, sampler, rank_0_seed, dispatches));
}

}  // namespace accelerate::detail
