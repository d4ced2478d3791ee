#include "engines/fully_sharded_names.h"

#include <array>
#include <span>
#include <string>
#include <vector>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

// PyTorch's name and number of an enumerator; number 0 if it has none.
template <class T>
struct Spelling {
  std::string_view name;
  int number;
  T value;
};

constexpr std::array<Spelling<ShardingStrategy>, 6> kStrategies{{
    {"FULL_SHARD", 1, ShardingStrategy::full_shard},
    {"SHARD_GRAD_OP", 2, ShardingStrategy::shard_grad_op},
    {"NO_SHARD", 3, ShardingStrategy::no_shard},
    {"HYBRID_SHARD", 4, ShardingStrategy::hybrid_shard},
    {"HYBRID_SHARD_ZERO2", 5, ShardingStrategy::hybrid_shard_zero2},
    {"_HYBRID_SHARD_ZERO2", 0, ShardingStrategy::hybrid_shard_zero2},
}};
constexpr std::array<Spelling<BackwardPrefetch>, 3> kPrefetches{{
    {"BACKWARD_PRE", 1, BackwardPrefetch::backward_pre},
    {"BACKWARD_POST", 2, BackwardPrefetch::backward_post},
    {"NO_PREFETCH", 0, BackwardPrefetch::none},
}};
constexpr std::array<Spelling<AutoWrapPolicy>, 3> kWrapPolicies{{
    {"TRANSFORMER_BASED_WRAP", 0, AutoWrapPolicy::transformer_based_wrap},
    {"SIZE_BASED_WRAP", 0, AutoWrapPolicy::size_based_wrap},
    {"NO_WRAP", 0, AutoWrapPolicy::no_wrap},
}};
constexpr std::array<Spelling<FloatType>, 4> kFloats{{
    {"FP32", 0, FloatType::fp32},
    {"FP16", 0, FloatType::fp16},
    {"BF16", 0, FloatType::bf16},
    {"FP8", 0, FloatType::bf16},
}};

template <class T>
T parse_spelling(
    std::string_view option,
    std::string_view text,
    std::span<const Spelling<T>> spellings) {
  const std::string upper = to_upper(text);
  const auto number = parse_int(text);
  std::vector<std::string> names;
  for (const Spelling<T>& spelling : spellings) {
    if (spelling.name == upper ||
        (number && spelling.number != 0 && *number == spelling.number)) {
      return spelling.value;
    }
    if (!spelling.name.starts_with('_')) names.emplace_back(spelling.name);
  }
  throw ConfigError(format(
      "[config] {} is \"{}\", but must be {}",
      option,
      text,
      join(names, ", ")));
}

template <class T>
std::string_view spelling_of(T value, std::span<const Spelling<T>> spellings) {
  for (const Spelling<T>& spelling : spellings) {
    if (spelling.value == value) return spelling.name;
  }
  throw InternalError("[config] a value of an option has no name");
}

}  // namespace

ShardingStrategy parse_sharding_strategy(std::string_view name) {
  return parse_spelling<ShardingStrategy>(
      "fsdp_sharding_strategy", name, kStrategies);
}
BackwardPrefetch parse_backward_prefetch(std::string_view name) {
  return parse_spelling<BackwardPrefetch>(
      "fsdp_backward_prefetch", name, kPrefetches);
}
AutoWrapPolicy parse_auto_wrap_policy(std::string_view name) {
  return parse_spelling<AutoWrapPolicy>(
      "fsdp_auto_wrap_policy", name, kWrapPolicies);
}

FloatType parse_float_type(std::string_view name) {
  return parse_spelling<FloatType>("mixed_precision_policy", name, kFloats);
}

std::string_view name_of(ShardingStrategy strategy) {
  return spelling_of<ShardingStrategy>(strategy, kStrategies);
}
std::string_view name_of(BackwardPrefetch prefetch) {
  return spelling_of<BackwardPrefetch>(prefetch, kPrefetches);
}
std::string_view name_of(AutoWrapPolicy policy) {
  return spelling_of<AutoWrapPolicy>(policy, kWrapPolicies);
}
std::string_view name_of(FloatType type) {
  return spelling_of<FloatType>(type, kFloats);
}

}  // namespace accelerate::detail
