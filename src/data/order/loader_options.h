#pragma once

#include <accelerate/data_loader_options.h>

#include "data/order/batch_source.h"

namespace accelerate::detail {

/// Throws ConfigError for options that contradict each other or the dataset.
/// Unset fields may remain, or may hold the accelerator's defaults.
void require_consistent(
    const DatasetFacts& dataset,
    const DataLoaderOptions& options);

/// Checks options again once the ranks are known: `given` are the loader's own
/// options, `options` the same with unset fields filled from the accelerator's
/// defaults.
void require_attachable(
    const DatasetFacts& dataset,
    const DataLoaderOptions& given,
    const DataLoaderOptions& options,
    bool dispatches);

}  // namespace accelerate::detail
