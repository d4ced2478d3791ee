#pragma once

#include <optional>
#include <string>
#include <vector>

#include <accelerate/fully_sharded.h>
#include <accelerate/parallel_options.h>

#include "engines/training_request.h"
#include "parallel/shard/shard.h"

namespace accelerate::detail {

/// Resolves the requested sharding into options with these dtypes.
ShardOptions make_shard_options(
    const ShardingRequest& request,
    const MixedPrecisionPolicy& precision);

/// What ReplicateOptions mean beside sharding.
struct ShardedReplicas {
  /// Dtype in which gradients are averaged over replicas; unset: their own.
  std::optional<at::ScalarType> dtype = std::nullopt;
  /// Settings that were given but have no effect.
  std::vector<IgnoredSetting> ignored = {};
  /// Why some setting cannot be honoured.
  std::optional<std::string> complaint = std::nullopt;
};

/// `has_replicas`: the shards have replicas on other ranks.
ShardedReplicas read_replicate_options(
    const ReplicateOptions& options,
    bool has_replicas);

}  // namespace accelerate::detail
