#include "engines/fully_sharded/fully_sharded.h"

#include <array>
#include <span>
#include <utility>

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
constexpr std::array<Spelling<StateDictType>, 3> kStateDicts{{
    {"FULL_STATE_DICT", 1, StateDictType::full_state_dict},
    {"LOCAL_STATE_DICT", 2, StateDictType::local_state_dict},
    {"SHARDED_STATE_DICT", 3, StateDictType::sharded_state_dict},
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
      "[config] {} is \"{}\"; it must be {}", option, text, join(names, ", ")));
}

template <class T>
std::string_view spelling_of(T value, std::span<const Spelling<T>> spellings) {
  for (const Spelling<T>& spelling : spellings) {
    if (spelling.value == value) return spelling.name;
  }
  throw InternalError("[config] a value of an option has no name");
}

std::variant<bool, int, ShardingStrategy> parse_reshard(std::string_view text) {
  if (const auto number = parse_int(text); number && *number > 1)
    return static_cast<int>(*number);
  if (const auto value = parse_bool(text)) return *value;
  throw ConfigError(format(
      "[config] fsdp_reshard_after_forward is \"{}\"; with fsdp_version 2 it "
      "must be true, false or a number of ranks",
      text));
}

std::vector<std::string> trimmed_names(std::string_view names) {
  std::vector<std::string> trimmed;
  for (const std::string& name : split(names, ','))
    trimmed.emplace_back(trim(name));
  return trimmed;
}

// PyTorch's defaults; version 2 has one of the three fields.
void fill_casts(MixedPrecisionPolicy& policy, int version) {
  const bool is_2 = version == 2;
  if (!policy.cast_forward_inputs) policy.cast_forward_inputs = is_2;
  if (is_2) return;
  if (!policy.cast_root_forward_inputs) policy.cast_root_forward_inputs = true;
  if (!policy.keep_low_precision_grads) policy.keep_low_precision_grads = false;
}

// Fills in unset fields, and collects complaints.
class FullyShardedResolution {
 public:
  FullyShardedResolution(
      const FullyShardedDataParallelOptions& given,
      const Settings& settings)
      : options_(given), settings_(settings) {}

  FullyShardedDataParallelOptions run(std::string_view mixed_precision) {
    attempt([&] { choose_version(); });
    attempt([&] { choose_strategy(); });
    attempt([&] { choose_prefetch(); });
    attempt([&] { choose_state_dict(); });
    attempt([&] { choose_units(); });
    attempt([&] { choose_module_states(); });
    attempt([&] { choose_activations(); });
    attempt([&] { choose_precision(mixed_precision); });
    take(options_.cpu_offload, "fsdp_offload_params");
    if (!options_.limit_all_gathers) options_.limit_all_gathers = true;
    if (!options_.ignored_modules)
      options_.ignored_modules = settings_.text("fsdp_ignored_modules");
    if (!complaints_.empty()) throw ConfigError(join(complaints_, "\n"));
    return std::move(options_);
  }

 private:
  template <class Body>
  void attempt(Body&& body) {
    try {
      body();
    } catch (const ConfigError& error) {
      complaints_.emplace_back(error.what());
    }
  }

  void take(std::optional<bool>& field, std::string_view key) const {
    if (!field) field = settings_.boolean(key);
  }

  template <class T>
  void take(
      std::optional<T>& field,
      std::string_view key,
      T (*parse)(std::string_view)) const {
    if (field) return;
    if (const auto text = settings_.as_written(key)) field = parse(*text);
  }

  void choose_version() {
    if (!options_.fsdp_version)
      options_.fsdp_version = settings_.text("fsdp_version") == "2" ? 2 : 1;
    is_2_ = *options_.fsdp_version == 2;
    if (*options_.fsdp_version != 1 && !is_2_) {
      throw ConfigError(format(
          "[config] fsdp_version is {}; it must be 1 or 2",
          *options_.fsdp_version));
    }
  }

  void choose_strategy() {
    if (!is_2_)
      take(
          options_.sharding_strategy,
          "fsdp_sharding_strategy",
          parse_sharding_strategy);
    auto& reshard = options_.reshard_after_forward;
    if (!options_.sharding_strategy)
      take(reshard, "fsdp_reshard_after_forward", parse_reshard);
    const bool names_strategy =
        reshard && std::holds_alternative<ShardingStrategy>(*reshard);
    if (is_2_ && (!reshard || names_strategy)) {
      throw ConfigError(
          "[config] fsdp_version 2 replaces sharding_strategy by "
          "reshard_after_forward (true, false or a number of ranks): give true "
          "for FULL_SHARD, false for SHARD_GRAD_OP");
    }
    if (!is_2_ && reshard && !names_strategy) {
      throw ConfigError(
          "[config] reshard_after_forward is true, false or a number of ranks, "
          "which only fsdp_version 2 has; set fsdp_version to 2 or give "
          "sharding_strategy");
    }
    if (is_2_ && std::holds_alternative<int>(*reshard) &&
        std::get<int>(*reshard) < 1) {
      throw ConfigError(format(
          "[config] reshard_after_forward is {}; a number of ranks is at least "
          "1",
          std::get<int>(*reshard)));
    }
  }

  void choose_prefetch() {
    auto& prefetch = options_.backward_prefetch;
    take(prefetch, "fsdp_backward_prefetch", parse_backward_prefetch);
    if (is_2_ || prefetch == BackwardPrefetch::none) prefetch = std::nullopt;
    if (is_2_) {
      if (options_.forward_prefetch) {
        throw ConfigError(
            "[config] forward_prefetch belongs to fsdp_version 1; leave it "
            "out, or set fsdp_version to 1");
      }
    } else {
      take(options_.forward_prefetch, "fsdp_forward_prefetch");
    }
  }

  void choose_state_dict() {
    take(
        options_.state_dict_type,
        "fsdp_state_dict_type",
        parse_state_dict_type);
    if (!options_.state_dict_type) {
      options_.state_dict_type = is_2_ ? StateDictType::sharded_state_dict
                                       : StateDictType::full_state_dict;
    }
    if (is_2_ && options_.state_dict_type == StateDictType::local_state_dict) {
      throw ConfigError(
          "[config] fsdp_version 2 has no LOCAL_STATE_DICT; use "
          "SHARDED_STATE_DICT or FULL_STATE_DICT");
    }
  }

  void choose_units() {
    take(
        options_.auto_wrap_policy,
        "fsdp_auto_wrap_policy",
        parse_auto_wrap_policy);
    if (!options_.auto_wrap_policy)
      options_.auto_wrap_policy = AutoWrapPolicy::no_wrap;
    switch (*options_.auto_wrap_policy) {
      case AutoWrapPolicy::no_wrap:
        break;
      case AutoWrapPolicy::transformer_based_wrap:
        take(
            options_.transformer_cls_names_to_wrap,
            "fsdp_transformer_layer_cls_to_wrap",
            trimmed_names);
        break;
      case AutoWrapPolicy::size_based_wrap:
        if (!options_.min_num_params)
          options_.min_num_params = settings_.integer("fsdp_min_num_params");
        break;
    }
    if (options_.min_num_params.value_or(0) < 0) {
      throw ConfigError(format(
          "[config] min_num_params is {}; it is at least 0",
          *options_.min_num_params));
    }
  }

  void choose_module_states() {
    take(options_.cpu_ram_efficient_loading, "fsdp_cpu_ram_efficient_loading");
    if (is_2_) {
      options_.use_orig_params = std::nullopt;
      options_.sync_module_states = std::nullopt;
      return;
    }
    take(options_.use_orig_params, "fsdp_use_orig_params");
    take(options_.sync_module_states, "fsdp_sync_module_states");
    if (*options_.cpu_ram_efficient_loading) options_.sync_module_states = true;
  }

  void choose_activations() {
    take(options_.activation_checkpointing, "fsdp_activation_checkpointing");
    take(
        options_.activation_checkpointing_offload,
        "fsdp_activation_checkpointing_offload");
    if (!*options_.activation_checkpointing_offload) return;
    if (!*options_.activation_checkpointing) {
      throw ConfigError(
          "[config] activation_checkpointing_offload needs "
          "activation_checkpointing; set it to true, too");
    }
    if (!is_2_) {
      throw ConfigError(
          "[config] activation_checkpointing_offload belongs to fsdp_version "
          "2; set fsdp_version to 2");
    }
  }

  void choose_precision(std::string_view precision) {
    auto& policy = options_.mixed_precision_policy;
    if (policy) {
      fill_casts(*policy, *options_.fsdp_version);
    } else if (precision != "no") {
      policy = policy_named(precision, *options_.fsdp_version);
    }
  }

  FullyShardedDataParallelOptions options_;
  const Settings& settings_;
  bool is_2_ = false;
  std::vector<std::string> complaints_;
};

}  // namespace

FullyShardedDataParallelOptions resolve_fully_sharded(
    const FullyShardedDataParallelOptions& given,
    const Settings& settings,
    std::string_view mixed_precision) {
  return FullyShardedResolution(given, settings).run(mixed_precision);
}

MixedPrecisionPolicy policy_named(std::string_view name, int fsdp_version) {
  const FloatType type =
      parse_spelling<FloatType>("mixed_precision_policy", name, kFloats);
  MixedPrecisionPolicy policy{.param_dtype = type, .reduce_dtype = type};
  (fsdp_version == 2 ? policy.output_dtype : policy.buffer_dtype) = type;
  fill_casts(policy, fsdp_version);
  return policy;
}

ShardingStrategy parse_sharding_strategy(std::string_view name) {
  return parse_spelling<ShardingStrategy>(
      "fsdp_sharding_strategy", name, kStrategies);
}
BackwardPrefetch parse_backward_prefetch(std::string_view name) {
  return parse_spelling<BackwardPrefetch>(
      "fsdp_backward_prefetch", name, kPrefetches);
}
StateDictType parse_state_dict_type(std::string_view name) {
  return parse_spelling<StateDictType>(
      "fsdp_state_dict_type", name, kStateDicts);
}
AutoWrapPolicy parse_auto_wrap_policy(std::string_view name) {
  return parse_spelling<AutoWrapPolicy>(
      "fsdp_auto_wrap_policy", name, kWrapPolicies);
}

std::string_view name_of(ShardingStrategy strategy) {
  return spelling_of<ShardingStrategy>(strategy, kStrategies);
}
std::string_view name_of(BackwardPrefetch prefetch) {
  return spelling_of<BackwardPrefetch>(prefetch, kPrefetches);
}
std::string_view name_of(StateDictType type) {
  return spelling_of<StateDictType>(type, kStateDicts);
}
std::string_view name_of(AutoWrapPolicy policy) {
  return spelling_of<AutoWrapPolicy>(policy, kWrapPolicies);
}
std::string_view name_of(FloatType type) {
  return spelling_of<FloatType>(type, kFloats);
}

}  // namespace accelerate::detail
