#include "engines/fully_sharded.h"

#include <array>
#include <span>
#include <utility>

#include <accelerate/error.h>

#include "base/text.h"

namespace accelerate::detail {

namespace {

// A word of PyTorch's, with its number there; 0: it has none.
template <class T>
struct Word {
  std::string_view name;
  int number;
  T value;
};

constexpr std::array<Word<ShardingStrategy>, 6> kStrategies{{
    {"FULL_SHARD", 1, ShardingStrategy::full_shard},
    {"SHARD_GRAD_OP", 2, ShardingStrategy::shard_grad_op},
    {"NO_SHARD", 3, ShardingStrategy::no_shard},
    {"HYBRID_SHARD", 4, ShardingStrategy::hybrid_shard},
    {"HYBRID_SHARD_ZERO2", 5, ShardingStrategy::hybrid_shard_zero2},
    {"_HYBRID_SHARD_ZERO2", 0, ShardingStrategy::hybrid_shard_zero2},
}};
constexpr std::array<Word<BackwardPrefetch>, 3> kPrefetches{{
    {"BACKWARD_PRE", 1, BackwardPrefetch::backward_pre},
    {"BACKWARD_POST", 2, BackwardPrefetch::backward_post},
    {"NO_PREFETCH", 0, BackwardPrefetch::none},
}};
constexpr std::array<Word<StateDictType>, 3> kStateDicts{{
    {"FULL_STATE_DICT", 1, StateDictType::full_state_dict},
    {"LOCAL_STATE_DICT", 2, StateDictType::local_state_dict},
    {"SHARDED_STATE_DICT", 3, StateDictType::sharded_state_dict},
}};
constexpr std::array<Word<AutoWrapPolicy>, 3> kWrapPolicies{{
    {"TRANSFORMER_BASED_WRAP", 0, AutoWrapPolicy::transformer_based_wrap},
    {"SIZE_BASED_WRAP", 0, AutoWrapPolicy::size_based_wrap},
    {"NO_WRAP", 0, AutoWrapPolicy::no_wrap},
}};
constexpr std::array<Word<FloatType>, 4> kFloats{{
    {"FP32", 0, FloatType::fp32},
    {"FP16", 0, FloatType::fp16},
    {"BF16", 0, FloatType::bf16},
    {"FP8", 0, FloatType::bf16},
}};

template <class T>
T parse_word(
    std::string_view option,
    std::string_view text,
    std::span<const Word<T>> words) {
  const std::string upper = to_upper(text);
  const auto number = parse_int(text);
  std::vector<std::string> names;
  for (const Word<T>& word : words) {
    if (word.name == upper ||
        (number && word.number != 0 && *number == word.number)) {
      return word.value;
    }
    if (!word.name.starts_with('_')) names.emplace_back(word.name);
  }
  throw ConfigError(format(
      "[config] {} is \"{}\"; it must be {}", option, text, join(names, ", ")));
}

template <class T>
std::string_view word_of(T value, std::span<const Word<T>> words) {
  for (const Word<T>& word : words) {
    if (word.value == value) return word.name;
  }
  throw InternalError("[config] a value of an option has no name");
}

std::variant<bool, int, ShardingStrategy> parse_reshard(
    std::string_view text,
    int version) {
  if (version == 1) return parse_sharding_strategy(text);
  if (const auto number = parse_int(text); number && *number > 1)
    return static_cast<int>(*number);
  if (const auto truth = parse_bool(text)) return *truth;
  throw ConfigError(format(
      "[config] fsdp_reshard_after_forward is \"{}\"; with fsdp_version 2 it "
      "must be true, false or a number of ranks",
      text));
}

// Fills fields in, and keeps what is wrong with them.
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
    take_truth(options_.cpu_offload, "fsdp_offload_params", false);
    if (!options_.limit_all_gathers) options_.limit_all_gathers = true;
    if (!options_.ignored_modules) {
      options_.ignored_modules = said("fsdp_ignored_modules");
    }
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

  // What the launcher said, not merely a default of its table.
  [[nodiscard]] std::optional<std::string> said(std::string_view key) const {
    if (!settings_.is_given(key)) return std::nullopt;
    return settings_.find(key)->text;
  }

  void take_truth(
      std::optional<bool>& field,
      std::string_view key,
      bool otherwise) const {
    if (field) return;
    field = settings_.is_given(key) ? settings_.boolean(key) : otherwise;
  }

  void choose_version() {
    if (!options_.fsdp_version) {
      const auto version = said("fsdp_version");
      options_.fsdp_version = version && *version == "2" ? 2 : 1;
    }
    is_2_ = *options_.fsdp_version == 2;
    if (*options_.fsdp_version != 1 && !is_2_) {
      throw ConfigError(format(
          "[config] fsdp_version is {}; it must be 1 or 2",
          *options_.fsdp_version));
    }
  }

  void choose_strategy() {
    if (!is_2_ && !options_.sharding_strategy) {
      options_.sharding_strategy = parse_sharding_strategy(
          said("fsdp_sharding_strategy").value_or("FULL_SHARD"));
    }
    auto& reshard = options_.reshard_after_forward;
    if (!reshard && !options_.sharding_strategy) {
      reshard =
          parse_reshard(said("fsdp_reshard_after_forward").value_or("true"), 2);
    }
    const bool names_strategy =
        reshard && std::holds_alternative<ShardingStrategy>(*reshard);
    if (is_2_ && (!reshard || names_strategy)) {
      throw ConfigError(
          "[config] fsdp_version 2 says by reshard_after_forward (true, false "
          "or a number of ranks) what sharding_strategy said in version 1; "
          "FULL_SHARD is true, SHARD_GRAD_OP is false; give that instead");
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
    if (!prefetch) {
      const auto word = said("fsdp_backward_prefetch");
      if (word) prefetch = parse_backward_prefetch(*word);
    }
    if (is_2_ || prefetch == BackwardPrefetch::none) prefetch = std::nullopt;
    if (is_2_) {
      if (options_.forward_prefetch) {
        throw ConfigError(
            "[config] forward_prefetch belongs to fsdp_version 1; leave it "
            "out, or set fsdp_version to 1");
      }
    } else {
      take_truth(options_.forward_prefetch, "fsdp_forward_prefetch", false);
    }
  }

  void choose_state_dict() {
    if (!options_.state_dict_type) {
      const auto word = said("fsdp_state_dict_type");
      options_.state_dict_type = word ? parse_state_dict_type(*word)
          : is_2_                     ? StateDictType::sharded_state_dict
                                      : StateDictType::full_state_dict;
    }
    if (is_2_ && options_.state_dict_type == StateDictType::local_state_dict) {
      throw ConfigError(
          "[config] fsdp_version 2 has no LOCAL_STATE_DICT; use "
          "SHARDED_STATE_DICT or FULL_STATE_DICT");
    }
  }

  void choose_units() {
    if (!options_.auto_wrap_policy) {
      options_.auto_wrap_policy = parse_auto_wrap_policy(
          said("fsdp_auto_wrap_policy").value_or("NO_WRAP"));
    }
    switch (*options_.auto_wrap_policy) {
      case AutoWrapPolicy::no_wrap:
        break;
      case AutoWrapPolicy::transformer_based_wrap:
        if (!options_.transformer_cls_names_to_wrap) {
          if (const auto names = said("fsdp_transformer_layer_cls_to_wrap")) {
            std::vector<std::string> trimmed;
            for (const std::string& name : split(*names, ','))
              trimmed.emplace_back(trim(name));
            options_.transformer_cls_names_to_wrap = std::move(trimmed);
          }
        }
        break;
      case AutoWrapPolicy::size_based_wrap:
        if (!options_.min_num_params) {
          options_.min_num_params = settings_.is_given("fsdp_min_num_params")
              ? *settings_.integer("fsdp_min_num_params")
              : 0;
        }
        break;
    }
    if (options_.min_num_params.value_or(0) < 0) {
      throw ConfigError(format(
          "[config] min_num_params is {}; it is at least 0",
          *options_.min_num_params));
    }
  }

  void choose_module_states() {
    take_truth(
        options_.cpu_ram_efficient_loading,
        "fsdp_cpu_ram_efficient_loading",
        false);
    if (is_2_) {
      options_.use_orig_params = std::nullopt;
      options_.sync_module_states = std::nullopt;
      return;
    }
    take_truth(options_.use_orig_params, "fsdp_use_orig_params", false);
    take_truth(options_.sync_module_states, "fsdp_sync_module_states", false);
    if (*options_.cpu_ram_efficient_loading) options_.sync_module_states = true;
  }

  void choose_activations() {
    take_truth(
        options_.activation_checkpointing,
        "fsdp_activation_checkpointing",
        false);
    take_truth(
        options_.activation_checkpointing_offload,
        "fsdp_activation_checkpointing_offload",
        false);
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

  void choose_precision(std::string_view word) {
    if (options_.mixed_precision_policy || word == "no") return;
    options_.mixed_precision_policy =
        policy_named(word, *options_.fsdp_version);
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

MixedPrecisionPolicy policy_named(std::string_view word, int fsdp_version) {
  const FloatType type =
      parse_word<FloatType>("mixed_precision_policy", word, kFloats);
  MixedPrecisionPolicy policy{.param_dtype = type, .reduce_dtype = type};
  (fsdp_version == 2 ? policy.output_dtype : policy.buffer_dtype) = type;
  return policy;
}

ShardingStrategy parse_sharding_strategy(std::string_view word) {
  return parse_word<ShardingStrategy>(
      "fsdp_sharding_strategy", word, kStrategies);
}
BackwardPrefetch parse_backward_prefetch(std::string_view word) {
  return parse_word<BackwardPrefetch>(
      "fsdp_backward_prefetch", word, kPrefetches);
}
StateDictType parse_state_dict_type(std::string_view word) {
  return parse_word<StateDictType>("fsdp_state_dict_type", word, kStateDicts);
}
AutoWrapPolicy parse_auto_wrap_policy(std::string_view word) {
  return parse_word<AutoWrapPolicy>(
      "fsdp_auto_wrap_policy", word, kWrapPolicies);
}

std::string_view name_of(ShardingStrategy strategy) {
  return word_of<ShardingStrategy>(strategy, kStrategies);
}
std::string_view name_of(BackwardPrefetch prefetch) {
  return word_of<BackwardPrefetch>(prefetch, kPrefetches);
}
std::string_view name_of(StateDictType type) {
  return word_of<StateDictType>(type, kStateDicts);
}
std::string_view name_of(AutoWrapPolicy policy) {
  return word_of<AutoWrapPolicy>(policy, kWrapPolicies);
}
std::string_view name_of(FloatType type) {
  return word_of<FloatType>(type, kFloats);
}

}  // namespace accelerate::detail
