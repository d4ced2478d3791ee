#include "engines/settings_in_force.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "base/text/text.h"
#include "engines/deepspeed/deepspeed.h"
#include "engines/fully_sharded/fully_sharded.h"
#include "engines/megatron_lm/megatron_args.h"
#include "engines/megatron_lm/megatron_lm.h"

namespace accelerate::detail {

namespace {

std::string setting_text(bool value) { return value ? "true" : "false"; }
std::string setting_text(int value) { return std::to_string(value); }
std::string setting_text(std::int64_t value) { return std::to_string(value); }
std::string setting_text(double value) { return format("{}", value); }
std::string setting_text(const std::string& value) { return value; }
std::string setting_text(const std::vector<std::string>& values) {
  return join(values, ",");
}
std::string setting_text(ShardingStrategy value) {
  return std::string(name_of(value));
}
std::string setting_text(BackwardPrefetch value) {
  return std::string(name_of(value));
}
std::string setting_text(StateDictType value) {
  return std::string(name_of(value));
}
std::string setting_text(AutoWrapPolicy value) {
  return std::string(name_of(value));
}
std::string setting_text(
    const std::variant<bool, int, ShardingStrategy>& value) {
  return std::visit([](const auto& v) { return setting_text(v); }, value);
}

// Options of a struct, by the launcher's keys.
class OptionList {
 public:
  OptionList(Origin origin, std::string where)
      : source_{origin, {}}, where_(std::move(where)) {}

  template <class T>
  void add(std::string_view key, const std::optional<T>& value) {
    if (value) source_.add(key, setting_text(*value), where_);
  }

  Source finish() { return std::move(source_); }

 private:
  Source source_;
  std::string where_;
};

void list(OptionList& out, const FullyShardedDataParallelOptions& options) {
  out.add("fsdp_version", options.fsdp_version);
  out.add("fsdp_sharding_strategy", options.sharding_strategy);
  out.add("fsdp_reshard_after_forward", options.reshard_after_forward);
  out.add("fsdp_backward_prefetch", options.backward_prefetch);
  out.add("fsdp_forward_prefetch", options.forward_prefetch);
  out.add("fsdp_auto_wrap_policy", options.auto_wrap_policy);
  out.add(
      "fsdp_transformer_layer_cls_to_wrap",
      options.transformer_cls_names_to_wrap);
  out.add("fsdp_min_num_params", options.min_num_params);
  out.add("fsdp_offload_params", options.cpu_offload);
  out.add("fsdp_ignored_modules", options.ignored_modules);
  out.add("fsdp_state_dict_type", options.state_dict_type);
  out.add("fsdp_use_orig_params", options.use_orig_params);
  out.add("fsdp_sync_module_states", options.sync_module_states);
  out.add("fsdp_activation_checkpointing", options.activation_checkpointing);
  out.add(
      "fsdp_activation_checkpointing_offload",
      options.activation_checkpointing_offload);
  out.add("fsdp_cpu_ram_efficient_loading", options.cpu_ram_efficient_loading);
}

// kAuto leaves a number unset.
template <class T>
std::optional<T> unless_auto(const std::optional<T>& value) {
  return value == T{kAuto} ? std::nullopt : value;
}

void list(OptionList& out, const DeepSpeedOptions& options) {
  if (const std::string& config = options.hf_ds_config; !config.empty()) {
    out.add(
        "deepspeed_config_file",
        std::optional<std::string>(
            config.starts_with('{') ? "a JSON object" : config));
  }
  out.add("zero_stage", options.zero_stage);
  out.add("gradient_clipping", unless_auto(options.gradient_clipping));
  out.add("offload_optimizer_device", options.offload_optimizer_device);
  out.add("offload_param_device", options.offload_param_device);
  out.add("offload_optimizer_nvme_path", options.offload_optimizer_nvme_path);
  out.add("offload_param_nvme_path", options.offload_param_nvme_path);
  out.add("zero3_init_flag", options.zero3_init_flag);
  out.add("zero3_save_16bit_model", options.zero3_save_16bit_model);
  out.add("deepspeed_moe_layer_cls_names", options.transformer_moe_cls_names);
}

void list(OptionList& out, const MegatronLMOptions& options) {
  const auto add = [&](const std::string& name, const auto& value) {
    out.add("megatron_lm_" + name, value);
  };
  add("tp_degree", options.tp_degree);
  add("pp_degree", options.pp_degree);
  add("context_parallel_size", options.context_parallel_size);
  add("expert_model_parallel_size", options.expert_model_parallel_size);
  add("expert_tensor_parallel_size", options.expert_tensor_parallel_size);
  add("num_micro_batches", options.num_micro_batches);
  add("gradient_clipping", options.gradient_clipping);
  add("sequence_parallelism", options.sequence_parallelism);
  add("recompute_activations", options.recompute_activations);
  add("recompute_granularity", options.recompute_granularity);
  add("recompute_method", options.recompute_method);
  add("recompute_num_layers", options.recompute_num_layers);
  add("use_distributed_optimizer", options.use_distributed_optimizer);
  add("use_custom_fsdp", options.use_custom_fsdp);
  add("optimizer_cpu_offload", options.optimizer_cpu_offload);
  add("overlap_cpu_optimizer_d2h_h2d", options.overlap_cpu_optimizer_d2h_h2d);
  add("use_precision_aware_optimizer", options.use_precision_aware_optimizer);
  add("no_load_optim", options.no_load_optim);
  add("no_save_optim", options.no_save_optim);
  add("eod_mask_loss", options.eod_mask_loss);
  add("calculate_per_token_loss", options.calculate_per_token_loss);
  add("decoder_last_pipeline_num_layers",
      options.decoder_last_pipeline_num_layers);
  add("attention_backend", options.attention_backend);
  add("attention_softmax_in_fp32", options.attention_softmax_in_fp32);
  add("use_rotary_position_embeddings", options.use_rotary_position_embeddings);
  add("attention_dropout", options.attention_dropout);
  add("hidden_dropout", options.hidden_dropout);
}

void list(OptionList& out, const ParallelismConfig& config) {
  const auto add = [&](const std::string& name, const auto& value) {
    out.add("parallelism_config_" + name, value);
  };
  add("dp_replicate_size", config.dp_replicate_size);
  add("dp_shard_size", config.dp_shard_size);
  add("tp_size", config.tp_size);
  add("cp_size", config.cp_size);
  add("cp_backend", config.cp_backend);
  add("cp_comm_strategy", config.cp_comm_strategy);
  add("sp_size", config.sp_size);
  add("sp_backend", config.sp_backend);
  add("sp_seq_length", config.sp_seq_length);
  add("sp_seq_length_is_variable", config.sp_seq_length_is_variable);
  add("sp_attn_implementation", config.sp_attn_implementation);
}

template <class Options>
Source defaults_of(const Options& resolved) {
  OptionList out(Origin::settled, "default");
  list(out, resolved);
  return out.finish();
}

void settle_all(Settings& settings, const Source& source) {
  for (const auto& [key, entry] : source.values)
    settings.settle(key, entry.first, entry.second);
}

// Replaces what was given in addition to DeepSpeed's configuration with what
// the configuration says.
std::vector<IgnoredSetting> overrule(
    Settings& settings,
    const DeepSpeedOptions& resolved) {
  OptionList out(Origin::code, "DeepSpeed configuration");
  list(out, resolved);
  out.add(
      "gradient_accumulation_steps",
      unless_auto(resolved.gradient_accumulation_steps));
  std::vector<IgnoredSetting> overruled;
  const Source source = out.finish();
  for (const auto& [key, entry] : source.values) {
    const Resolved* const given = settings.find(key);
    if (given == nullptr || given->origin == Origin::code ||
        !settings.is_given(key) ||
        given->value == parse_option(*find_option(key), entry.first)) {
      continue;
    }
    overruled.push_back(
        {key,
         format("the DeepSpeed configuration says {}", entry.first),
         given->where});
    settings.overrule(key, entry.first, entry.second);
  }
  return overruled;
}

}  // namespace

Source source_of_options(const ParallelOptions& options) {
  OptionList out(Origin::code, "code");
  out.add("parallelism_config_dp_replicate_size", options.replicate);
  out.add("parallelism_config_dp_shard_size", options.shard);
  out.add("parallelism_config_tp_size", options.tensor);
  out.add("parallelism_config_cp_size", options.context);
  out.add("parallelism_config_pp_size", options.pipeline);
  out.add("parallelism_config_ep_size", options.expert);
  const auto add_engine = [&](std::string_view key, const auto& engine) {
    if (!engine) return;
    out.add(key, std::optional(true));
    list(out, *engine);
  };
  add_engine("use_fsdp", options.fully_sharded);
  add_engine("use_deepspeed", options.deepspeed);
  if (options.megatron_lm) {
    add_engine(
        "use_megatron_lm",
        std::optional(read_megatron_arguments(*options.megatron_lm).options));
  }
  if (options.parallelism_config) list(out, *options.parallelism_config);
  return out.finish();
}

std::vector<IgnoredSetting> settle_engine(
    Settings& settings,
    const RequestSources& sources,
    const TrainingRequest& request) {
  const ParallelOptions& options = sources.parallel;
  switch (request.engine) {
    case Engine::fully_sharded: {
      Source defaults = defaults_of(resolve_fully_sharded(
          options.fully_sharded.value_or(FullyShardedDataParallelOptions()),
          sources.settings,
          sources.mixed_precision));
      // The plugin's defaults for these do not apply: without a value, units
      // are elements of containers, and the execution order is learned.
      defaults.values.erase("fsdp_auto_wrap_policy");
      defaults.values.erase("fsdp_forward_prefetch");
      settle_all(settings, defaults);
      break;
    }
    case Engine::deepspeed: {
      const DeepSpeedConfig config(
          options.deepspeed.value_or(DeepSpeedOptions()),
          sources.settings,
          sources.environment);
      auto overruled = overrule(settings, config.options());
      settle_all(settings, defaults_of(config.options()));
      return overruled;
    }
    case Engine::megatron_lm:
      settle_all(
          settings,
          defaults_of(resolve_megatron_lm(
              options.megatron_lm.value_or(MegatronLMOptions()),
              sources.settings)));
      break;
    case Engine::none:
      break;
  }
  return {};
}

}  // namespace accelerate::detail
