#pragma once

#include <accelerate/data_loader.h>
#include <accelerate/detail/batch_source.h>

namespace accelerate::detail {

/// Throws ConfigError for options that contradict each other or the dataset.
/// They may have unset fields, or the accelerator's defaults in them.
void require_consistent(
    const DatasetFacts& dataset,
    const DataLoaderOptions& options);

/// The same once the ranks are known: `given` are the loader's own options,
/// `options` these with the accelerator's defaults in unset fields.
void require_attachable(
    const DatasetFacts& dataset,
    const DataLoaderOptions& given,
    const DataLoaderOptions& options,
    bool dispatches);

}  // namespace accelerate::detail
