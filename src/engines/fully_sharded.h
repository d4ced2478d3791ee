#pragma once

#include <string_view>

#include <accelerate/fully_sharded.h>

#include "config/settings.h"

namespace accelerate::detail {

/// `given` with every unset field filled in: from the launcher's `settings`,
/// else the default. A field that its version does not have is left unset.
/// `mixed_precision` ("no", "fp16", "bf16", "fp8") makes the precision policy
/// if none is given. Throws one ConfigError with everything that is wrong.
FullyShardedDataParallelOptions resolve_fully_sharded(
    const FullyShardedDataParallelOptions& given,
    const Settings& settings,
    std::string_view mixed_precision = "no");

/// Accelerate's words for a policy of one type: "fp32", "fp16", "bf16", or
/// "fp8", whose weights travel in bf16.
MixedPrecisionPolicy policy_named(std::string_view word, int fsdp_version);

// In any case of letters, or PyTorch's number. Throw ConfigError.
ShardingStrategy parse_sharding_strategy(std::string_view word);
BackwardPrefetch parse_backward_prefetch(std::string_view word);
StateDictType parse_state_dict_type(std::string_view word);
AutoWrapPolicy parse_auto_wrap_policy(std::string_view word);

std::string_view name_of(ShardingStrategy strategy);
std::string_view name_of(BackwardPrefetch prefetch);
std::string_view name_of(StateDictType type);
std::string_view name_of(AutoWrapPolicy policy);
std::string_view name_of(FloatType type);

}  // namespace accelerate::detail
