#include <variant>

#include "base/text/text.h"
#include "engines/fully_sharded/fully_sharded.h"
#include "engines/fully_sharded_names.h"
#include "oracle/plugins/plugins.h"

namespace accelerate::oracle::topic_plugins {

namespace {

template <class T>
Json name_or_null(const std::optional<T>& value) {
  return value ? Json(std::string(detail::name_of(*value))) : Json(nullptr);
}

// PyTorch's name for an enumerator.
std::string torch_name(ShardingStrategy strategy) {
  return strategy == ShardingStrategy::hybrid_shard_zero2
      ? "_HYBRID_SHARD_ZERO2"
      : std::string(detail::name_of(strategy));
}

Json dtype_or_null(const std::optional<FloatType>& type) {
  if (!type) return nullptr;
  return *type == FloatType::fp32 ? "float32"
      : *type == FloatType::fp16  ? "float16"
                                  : "bfloat16";
}

Json policy_json(
    const std::optional<MixedPrecisionPolicy>& policy,
    int version) {
  if (!policy) return nullptr;
  Json json{
      {"param_dtype", dtype_or_null(policy->param_dtype)},
      {"reduce_dtype", dtype_or_null(policy->reduce_dtype)},
      {"cast_forward_inputs", json_of(policy->cast_forward_inputs)}};
  if (version == 2) {
    json["output_dtype"] = dtype_or_null(policy->output_dtype);
  } else {
    json["buffer_dtype"] = dtype_or_null(policy->buffer_dtype);
    // Gradients always have the dtype of the shards.
    json["keep_low_precision_grads"] = false;
    json["cast_root_forward_inputs"] =
        json_of(policy->cast_root_forward_inputs);
  }
  return json;
}

}  // namespace

Json run_fsdp(const Json& input) {
  const Settings settings = settings_of(input);
  const Json& args = input.at("args");
  FullyShardedDataParallelOptions given;
  read(args, "fsdp_version", given.fsdp_version);
  if (args.contains("sharding_strategy")) {
    given.sharding_strategy =
        detail::parse_sharding_strategy(word_of(args.at("sharding_strategy")));
  }
  if (args.contains("reshard_after_forward")) {
    const Json& reshard = args.at("reshard_after_forward");
    if (reshard.is_boolean()) {
      given.reshard_after_forward = reshard.get<bool>();
    } else if (const auto truth =
                   detail::parse_bool(reshard.get<std::string>());
               truth && given.fsdp_version == 2) {
      given.reshard_after_forward = *truth;
    } else {
      given.reshard_after_forward =
          detail::parse_sharding_strategy(reshard.get<std::string>());
    }
  }
  if (args.contains("backward_prefetch")) {
    given.backward_prefetch =
        detail::parse_backward_prefetch(word_of(args.at("backward_prefetch")));
  }
  if (args.contains("auto_wrap_policy")) {
    given.auto_wrap_policy =
        detail::parse_auto_wrap_policy(word_of(args.at("auto_wrap_policy")));
  }
  if (args.contains("mixed_precision_policy")) {
    given.mixed_precision_policy = detail::policy_named(
        args.at("mixed_precision_policy").get<std::string>(),
        given.fsdp_version.value_or(
            settings.text("fsdp_version") == "2" ? 2 : 1));
  }
  read(args, "forward_prefetch", given.forward_prefetch);
  read(
      args,
      "transformer_cls_names_to_wrap",
      given.transformer_cls_names_to_wrap);
  read(args, "min_num_params", given.min_num_params);
  read(args, "cpu_offload", given.cpu_offload);
  read(args, "ignored_modules", given.ignored_modules);
  read(args, "limit_all_gathers", given.limit_all_gathers);
  read(args, "activation_checkpointing", given.activation_checkpointing);
  read(
      args,
      "activation_checkpointing_offload",
      given.activation_checkpointing_offload);
  read(args, "cpu_ram_efficient_loading", given.cpu_ram_efficient_loading);

  const auto found = detail::resolve_fully_sharded(
      given,
      settings,
      input.at("set_mixed_precision").is_null()
          ? "no"
          : input.at("set_mixed_precision").get<std::string>());
  Json reshard = nullptr;
  if (found.reshard_after_forward) {
    reshard = std::visit(
        [](auto value) -> Json {
          if constexpr (std::is_same_v<decltype(value), ShardingStrategy>) {
            return torch_name(value);
          } else {
            return value;
          }
        },
        *found.reshard_after_forward);
  }
  const bool is_wrapped = found.auto_wrap_policy != AutoWrapPolicy::no_wrap;
  return {
      {"fields",
       {{"fsdp_version", *found.fsdp_version},
        {"sharding_strategy",
         found.sharding_strategy ? Json(torch_name(*found.sharding_strategy))
                                 : Json(nullptr)},
        {"reshard_after_forward", reshard},
        {"backward_prefetch", name_or_null(found.backward_prefetch)},
        {"mixed_precision_policy",
         policy_json(found.mixed_precision_policy, *found.fsdp_version)},
        {"auto_wrap_policy",
         !is_wrapped ? Json(nullptr)
             : found.auto_wrap_policy == AutoWrapPolicy::size_based_wrap
             ? Json("size_based_auto_wrap_policy")
             : Json("transformer_auto_wrap_policy")},
        {"ignored_modules", json_of(found.ignored_modules)},
        {"limit_all_gathers", json_of(found.limit_all_gathers)},
        {"forward_prefetch", json_of(found.forward_prefetch)},
        {"activation_checkpointing", json_of(found.activation_checkpointing)},
        {"activation_checkpointing_offload",
         json_of(found.activation_checkpointing_offload)},
        {"cpu_ram_efficient_loading", json_of(found.cpu_ram_efficient_loading)},
        {"transformer_cls_names_to_wrap",
         json_of(found.transformer_cls_names_to_wrap)},
        {"min_num_params", json_of(found.min_num_params)},
        {"cpu_offload", json_of(found.cpu_offload)}}}};
}

}  // namespace accelerate::oracle::topic_plugins
