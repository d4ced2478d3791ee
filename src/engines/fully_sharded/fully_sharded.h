#pragma once

#include <string_view>

#include <accelerate/fully_sharded.h>

#include "config/settings.h"

namespace accelerate::detail {

/// `given` with every unset field filled in, from the launcher's `settings` or
/// else the default. A field that its version does not have is left unset.
/// `mixed_precision` ("no", "fp16", "bf16", "fp8") determines the precision
/// policy if none is given. Throws one ConfigError with everything that is
/// wrong.
FullyShardedDataParallelOptions resolve_fully_sharded(
    const FullyShardedDataParallelOptions& given,
    const Settings& settings,
    std::string_view mixed_precision = "no");

/// The policy for a dtype as Accelerate names it: "fp32", "fp16", "bf16", or
/// "fp8", which gathers weights in bf16.
MixedPrecisionPolicy policy_named(std::string_view name, int fsdp_version);

// These parse PyTorch's name, in upper or lower case, or its number. They throw
// ConfigError.
ShardingStrategy parse_sharding_strategy(std::string_view name);
BackwardPrefetch parse_backward_prefetch(std::string_view name);
StateDictType parse_state_dict_type(std::string_view name);
AutoWrapPolicy parse_auto_wrap_policy(std::string_view name);

std::string_view name_of(ShardingStrategy strategy);
std::string_view name_of(BackwardPrefetch prefetch);
std::string_view name_of(StateDictType type);
std::string_view name_of(AutoWrapPolicy policy);
std::string_view name_of(FloatType type);

}  // namespace accelerate::detail
