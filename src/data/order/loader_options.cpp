#include "data/order/loader_options.h"

#include <string>
#include <string_view>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

void require_dispatchable(const DataLoaderOptions& options) {
  if (options.batch_sampler) {
    throw ConfigError(
        "[data] dispatch_batches cuts rounds evenly, but a batch_sampler makes "
        "batches of varying sizes; unset one of them");
  }
  if (!*options.even_batches && !options.drop_last) {
    throw ConfigError(
        "[data] even_batches = false leaves ranks without samples at the end, "
        "but dispatch_batches cuts every round evenly; unset one of them, or "
        "set drop_last");
  }
}

}  // namespace

void require_consistent(
    const DatasetFacts& dataset,
    const DataLoaderOptions& options) {
  const bool splits = options.split_batches.value_or(false);
  std::string complaints;
  const auto complain = [&](bool is_wrong, std::string_view what) {
    if (is_wrong)
      complaints += format("{}{}", complaints.empty() ? "" : "; ", what);
  };
  complain(
      options.sampler && options.shuffle,
      "shuffle and a sampler are both set, but the sampler decides the order: "
      "unset shuffle");
  complain(
      options.batch_sampler &&
          (options.sampler || options.shuffle || splits ||
           options.batch_size != 1),
      "a batch_sampler is set together with batch_size, shuffle, sampler or "
      "split_batches, but it alone decides which samples "
      "form a batch: unset them");
  complain(
      options.use_seedable_sampler.value_or(false) && !options.shuffle,
      "use_seedable_sampler is set without shuffle, whose order it decides; "
      "set shuffle");
  complain(
      dataset.is_stream &&
          (options.shuffle || options.sampler || options.batch_sampler),
      "shuffle or a sampler is set, but a stream has its own order; shuffle in "
      "the dataset's next(), or offer size() and get(index)");
  complain(
      options.num_workers < 0,
      format("num_workers must be at least 0, but is {}", options.num_workers));
  complain(
      options.prefetch_factor.value_or(1) < 1,
      format(
          "prefetch_factor must be at least 1, but is {}",
          options.prefetch_factor.value_or(1)));
  complain(
      options.timeout.count() < 0,
      format(
          "timeout must be at least 0 ms, which means no limit, but is {}",
          options.timeout.count()));
  complain(
      options.num_workers == 0 &&
          (options.prefetch_factor || options.timeout.count() > 0 ||
           !options.in_order),
      "prefetch_factor, timeout or in_order is set without workers, to which "
      "it applies; set num_workers");
  complain(
      options.already_sharded && options.dispatch_batches.value_or(false),
      "already_sharded says that each rank reads its own shard, "
      "dispatch_batches that rank 0 reads for all; unset one of them");
  complain(
      options.already_sharded && splits,
      "already_sharded says that each rank reads its own shard, split_batches "
      "that batches are cut for the ranks; unset one of them");
  if (!complaints.empty()) throw ConfigError("[data] " + complaints);
}

void require_attachable(
    const DatasetFacts& dataset,
    const DataLoaderOptions& given,
    const DataLoaderOptions& options,
    bool dispatches) {
  DataLoaderOptions checked = options;
  // As a default, it applies only to loaders that shuffle.
  checked.use_seedable_sampler = given.use_seedable_sampler;
  require_consistent(dataset, checked);
  if (dispatches) require_dispatchable(options);
  if (dataset.is_sharded && !options.already_sharded) {
    throw ConfigError(
        "[data] this dataset says that it is already sharded (is_sharded()), "
        "but the loader would shard it again; set already_sharded, or pass the "
        "entire dataset");
  }
}

DataLoaderOptions with_defaults(
    DataLoaderOptions options,
    const DataLoaderConfiguration& defaults) {
  const auto fill = [](auto& field, const auto& value) {
    if (!field) field = value;
  };
  fill(options.split_batches, defaults.split_batches);
  fill(options.dispatch_batches, defaults.dispatch_batches);
  fill(options.even_batches, defaults.even_batches);
  fill(options.use_seedable_sampler, defaults.use_seedable_sampler);
  fill(options.data_seed, defaults.data_seed);
  fill(options.non_blocking, defaults.non_blocking);
  fill(options.sequences, defaults.sequences);
  return options;
}

}  // namespace accelerate::detail
