#pragma once

#include <cstdint>

#include <accelerate/data_loader_options.h>
#include <accelerate/world.h>

#include "data/order/batch_source.h"

namespace accelerate::detail {

/// Throws ConfigError on every rank of `group` if their loaders differ in
/// anything that decides which rank reads which samples: options, sizes, orders
/// and seeds. `rank_0_seed` is the seed if the options give none. Collective.
void require_equal_loaders(
    const Group& group,
    const DatasetFacts& dataset,
    const DataLoaderOptions& options,
    const Sampler& sampler,
    std::uint64_t rank_0_seed,
    bool dispatches);

}  // namespace accelerate::detail
