#pragma once

#include <accelerate/fully_sharded.h>

#include "engines/training_request.h"
#include "parallel/shard/shard.h"

namespace accelerate::detail {

/// The options of the sharding that was requested, in these dtypes.
ShardOptions make_shard_options(
    const ShardingRequest& request,
    const MixedPrecisionPolicy& precision);

}  // namespace accelerate::detail
