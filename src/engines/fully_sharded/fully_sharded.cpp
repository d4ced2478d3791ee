#include "engines/fully_sharded/fully_sharded.h"

#include <utility>

#include <accelerate/error.h>

#include "base/require.h"
#include "base/text/text.h"
#include "engines/fully_sharded_names.h"

namespace accelerate::detail {

namespace {

std::variant<bool, int, ShardingStrategy> parse_reshard(std::string_view text) {
  if (const auto number = parse_int(text); number && *number > 1)
    return static_cast<int>(*number);
  if (const auto value = parse_bool(text)) return *value;
  throw ConfigError(format(
      "[config] fsdp_reshard_after_forward is \"{}\", but with fsdp_version 2 "
      "must be true, false or a number of ranks",
      text));
}

std::vector<std::string> trimmed_names(std::string_view names) {
  std::vector<std::string> trimmed;
  for (const std::string& name : split(names, ','))
    trimmed.emplace_back(trim(name));
  return trimmed;
}

// Sets PyTorch's defaults; version 2 has one of the three fields.
void fill_casts(MixedPrecisionPolicy& policy, int version) {
  const bool is_2 = version == 2;
  if (!policy.cast_forward_inputs) policy.cast_forward_inputs = is_2;
  if (is_2) return;
  if (!policy.cast_root_forward_inputs) policy.cast_root_forward_inputs = true;
}

// Fills in unset fields, and collects complaints.
class FullyShardedResolution {
 public:
  FullyShardedResolution(
      const FullyShardedDataParallelOptions& given,
      const Settings& settings)
      : options_(given), settings_(settings) {}

  FullyShardedDataParallelOptions run(std::string_view mixed_precision) {
    attempt(complaints_, [&] { choose_version(); });
    attempt(complaints_, [&] { choose_strategy(); });
    attempt(complaints_, [&] { choose_prefetch(); });
    attempt(complaints_, [&] { choose_units(); });
    attempt(complaints_, [&] { choose_activations(); });
    attempt(complaints_, [&] { choose_precision(mixed_precision); });
    attempt(complaints_, [&] { choose_offload(); });
    take(options_.cpu_ram_efficient_loading, "fsdp_cpu_ram_efficient_loading");
    if (!options_.limit_all_gathers) options_.limit_all_gathers = true;
    if (!options_.ignored_modules)
      options_.ignored_modules = settings_.text("fsdp_ignored_modules");
    if (!complaints_.empty()) throw ConfigError(join(complaints_, "\n"));
    return std::move(options_);
  }

 private:
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
          "[config] fsdp_version must be 1 or 2, but is {}",
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
          "reshard_after_forward (true, false or a number of ranks): use true "
          "for FULL_SHARD, false for SHARD_GRAD_OP");
    }
    if (!is_2_ && reshard && !names_strategy) {
      throw ConfigError(
          "[config] only fsdp_version 2 has reshard_after_forward as true, "
          "false or a number of ranks; set fsdp_version to 2, or "
          "sharding_strategy");
    }
    if (is_2_ && std::holds_alternative<int>(*reshard) &&
        std::get<int>(*reshard) < 1) {
      throw ConfigError(format(
          "[config] reshard_after_forward must be a number of ranks of at "
          "least 1, or true or false, but is {}",
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
    require_at_least(
        "config", "min_num_params", options_.min_num_params.value_or(0), 0);
  }

  void choose_offload() {
    take(options_.cpu_offload, "fsdp_offload_params");
    auto& directory = options_.offload_directory;
    if (!directory) directory = settings_.text("fsdp_offload_directory");
    if (directory && directory->empty()) directory.reset();
    if (!directory) return;
    take(options_.offload_directory_in_memory, "offload_directory_in_memory");
    take(options_.step_in_backward, "step_in_backward");
    if (!*options_.cpu_offload) {
      throw ConfigError(
          "[config] cpu_offload (fsdp_offload_params) must be true where "
          "offload_directory is given, but is false");
    }
    if (options_.sharding_strategy == ShardingStrategy::no_shard) {
      throw ConfigError(
          "[config] sharding_strategy must shard where offload_directory is "
          "given, but is NO_SHARD");
    }
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
          "activation_checkpointing; set it to true as well");
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
  const FloatType type = parse_float_type(name);
  MixedPrecisionPolicy policy{.param_dtype = type, .reduce_dtype = type};
  (fsdp_version == 2 ? policy.output_dtype : policy.buffer_dtype) = type;
  fill_casts(policy, fsdp_version);
  return policy;
}

}  // namespace accelerate::detail
