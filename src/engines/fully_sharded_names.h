#pragma once

#include <string_view>

#include <accelerate/fully_sharded.h>

namespace accelerate::detail {

// These parse PyTorch's name, in upper or lower case, or its number. They throw
// ConfigError.
ShardingStrategy parse_sharding_strategy(std::string_view name);
BackwardPrefetch parse_backward_prefetch(std::string_view name);
AutoWrapPolicy parse_auto_wrap_policy(std::string_view name);
FloatType parse_float_type(std::string_view name);

std::string_view name_of(ShardingStrategy strategy);
std::string_view name_of(BackwardPrefetch prefetch);
std::string_view name_of(AutoWrapPolicy policy);
std::string_view name_of(FloatType type);

}  // namespace accelerate::detail
