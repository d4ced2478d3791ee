#pragma once

#include <memory>
#include <optional>
#include <string>

#include <accelerate/parallel.h>

#include "parallel/strategy.h"

namespace accelerate::detail {

/// Returns what is wrong with the options; nothing if they can be honoured.
std::optional<std::string> validate_replicate(const ReplicateOptions& options);

/// Distributed data parallel: every rank holds a replica of the model;
/// gradients are averaged in buckets while backward still runs. (Li et al.,
/// "PyTorch Distributed: Experiences on Accelerating Data Parallel Training",
/// VLDB 2020.)
std::unique_ptr<Strategy> make_replicate(
    const Mesh& mesh,
    const ReplicateOptions& options);

}  // namespace accelerate::detail
