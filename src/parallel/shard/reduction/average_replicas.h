#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/world.h>

#include "parallel/shard/shard.h"

namespace accelerate::detail {

/// Averages the gradients of shards over the ranks that have the same shards.
/// Collective.
void average_shards(
    const Group& replicas,
    const std::vector<at::Tensor>& shards,
    const ShardOptions& options);

/// Averages the gradients of parameters that are not sharded. Collective.
void average_unsharded(
    const Group& group,
    const std::vector<at::Tensor>& parameters,
    const ShardOptions& options);

}  // namespace accelerate::detail
