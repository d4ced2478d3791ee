#include "parallel/shard_options.h"

#include <utility>

#include <accelerate/error.h>

#include "base/text.h"
#include "engines/deepspeed.h"
#include "engines/fully_sharded.h"

namespace accelerate::detail {

namespace {

std::optional<at::ScalarType> scalar_type(std::optional<FloatType> type) {
  if (!type) return std::nullopt;
  switch (*type) {
    case FloatType::fp32:
      return at::kFloat;
    case FloatType::fp16:
      return at::kHalf;
    case FloatType::bf16:
      return at::kBFloat16;
  }
  return std::nullopt;
}

std::string not_yet(std::string_view what, std::string_view instead) {
  return concat(
      "[parallel] ",
      what,
      " was asked for, which this version does not have; ",
      instead);
}

void set_precision(
    ShardOptions& options,
    const std::optional<MixedPrecisionPolicy>& policy) {
  if (!policy) return;
  options.param_dtype = scalar_type(policy->param_dtype);
  options.reduce_dtype = scalar_type(
      policy->reduce_dtype ? policy->reduce_dtype : policy->param_dtype);
}

// Whether units are chosen by a policy, or by what containers hold.
bool says_policy(
    const std::optional<FullyShardedDataParallelOptions>& given,
    const Settings& settings) {
  return (given && given->auto_wrap_policy) ||
      settings.is_given("fsdp_auto_wrap_policy");
}

ShardRequest read_fully_sharded(
    const std::optional<FullyShardedDataParallelOptions>& given,
    const Settings& settings,
    std::string_view mixed_precision) {
  ShardRequest request;
  ShardOptions& options = request.options;
  options.policy = resolve_fully_sharded(
      given.value_or(FullyShardedDataParallelOptions()),
      settings,
      mixed_precision);
  FullyShardedDataParallelOptions& policy = options.policy;
  if (!says_policy(given, settings)) policy.auto_wrap_policy = std::nullopt;
  set_precision(options, policy.mixed_precision_policy);
  // What the program's precision gives, outputs in fp32 included, is autocast's
  // to give.
  if (given && given->mixed_precision_policy) {
    options.buffer_dtype =
        scalar_type(policy.mixed_precision_policy->buffer_dtype);
    options.output_dtype =
        scalar_type(policy.mixed_precision_policy->output_dtype);
  }
  // As asked for, not as PyTorch's defaults are: here the order is learned.
  options.prefetches = !given ||
      (given->forward_prefetch.value_or(true) &&
       given->backward_prefetch != BackwardPrefetch::none);

  options.prefetches_late =
      policy.backward_prefetch == BackwardPrefetch::backward_post;
  request.span = ShardSpan::all;
  if (policy.sharding_strategy) {
    const ShardingStrategy strategy = *policy.sharding_strategy;
    if (strategy == ShardingStrategy::no_shard) request.span = ShardSpan::none;
    if (strategy == ShardingStrategy::hybrid_shard ||
        strategy == ShardingStrategy::hybrid_shard_zero2) {
      request.span = ShardSpan::machine;
    }
    options.frees_after_forward = strategy == ShardingStrategy::full_shard ||
        strategy == ShardingStrategy::hybrid_shard;
  } else if (
      const bool* frees = std::get_if<bool>(&*policy.reshard_after_forward)) {
    options.frees_after_forward = *frees;
  } else {
    options.neighbours = std::get<int>(*policy.reshard_after_forward);
    options.frees_after_forward = options.neighbours != 1;
  }
  options.offloads_parts = *policy.cpu_offload;
  options.gathers_ahead = *policy.limit_all_gathers ? 1 : 2;
  request.reads_on_rank_0 = *policy.cpu_ram_efficient_loading;
  request.makes_on_rank_0 = *policy.cpu_ram_efficient_loading;
  if (*policy.activation_checkpointing) {
    ActivationCheckpointingOptions& checkpointing =
        request.activation_checkpointing.emplace();
    checkpointing.auto_wrap_policy = policy.auto_wrap_policy;
    checkpointing.custom_auto_wrap_policy = policy.custom_auto_wrap_policy;
    checkpointing.transformer_cls_names_to_wrap =
        policy.transformer_cls_names_to_wrap.value_or(
            std::vector<std::string>());
    checkpointing.min_num_params = policy.min_num_params.value_or(0);
    checkpointing.options.offload_inputs =
        policy.activation_checkpointing_offload.value_or(false);
  }
  return request;
}

// Keys that say nothing about this library's work, or that the program does.
bool is_known_key(std::string_view path) {
  for (const std::string_view known :
       {"train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "gradient_clipping",
        "steps_per_print",
        "fp16.enabled",
        "fp16.auto_cast",
        "bf16.enabled",
        "zero_optimization.stage",
        "zero_optimization.offload_optimizer.device",
        "zero_optimization.offload_optimizer.nvme_path",
        "zero_optimization.offload_param.device",
        "zero_optimization.offload_param.nvme_path",
        "zero_optimization.stage3_gather_16bit_weights_on_model_save"}) {
    if (path == known) return true;
  }
  return false;
}

void list_ignored(
    const nlohmann::json& node,
    const std::string& path,
    std::vector<std::string>& ignored) {
  for (const auto& [name, value] : node.items()) {
    const std::string below = path.empty() ? name : concat(path, ".", name);
    // Whoever wants these makes them by optimizer_from_deepspeed() and
    // scheduler_from_deepspeed().
    if (below == "optimizer" || below == "scheduler") continue;
    if (value.is_object()) {
      list_ignored(value, below, ignored);
    } else if (!is_known_key(below) && value != "auto") {
      ignored.push_back(below);
    }
  }
}

ShardRequest read_deepspeed(
    const DeepSpeedOptions& given,
    const Settings& settings,
    const Environment& environment,
    std::string_view mixed_precision) {
  DeepSpeedConfig config(given, settings, environment);
  config.set_mixed_precision(mixed_precision);
  const DeepSpeedOptions& found = config.options();
  const std::string& of_optimizer = *found.offload_optimizer_device;
  const std::string& of_parameters = *found.offload_param_device;
  std::vector<std::string> complaints;
  for (const auto& [what, device] :
       {std::pair("optimizer", of_optimizer),
        std::pair("parameters", of_parameters)}) {
    if (device != "none" && device != "cpu") {
      complaints.push_back(not_yet(
          concat("offloading the ", what, " to ", device),
          "use cpu, leave it out, or shard over more ranks"));
    }
  }
  if (!complaints.empty()) throw ConfigError(join(complaints, "\n"));

  ShardRequest request;
  ShardOptions& options = request.options;
  const int stage = *found.zero_stage;
  request.span = stage == 0 ? ShardSpan::none : ShardSpan::all;
  options.frees_parameters = stage == 3;
  options.frees_after_forward = stage == 3;
  options.reduces_every_backward = stage >= 2;
  // Parts and their optimizer state are in one place.
  options.offloads_parts = of_optimizer == "cpu" || of_parameters == "cpu";
  if (mixed_precision != "no")
    set_precision(options, policy_named(mixed_precision, 1));
  // 1 is also what a configuration gets that says nothing.
  if (*found.gradient_accumulation_steps > 1)
    request.gradient_accumulation_steps = found.gradient_accumulation_steps;
  if (*found.gradient_clipping > 0)
    request.gradient_clipping = found.gradient_clipping;
  request.deepspeed_config = config.json().dump();
  list_ignored(config.json(), "", request.ignored);
  request.makes_on_rank_0 = stage == 3 && found.zero3_init_flag.value_or(false);
  return request;
}

}  // namespace

std::optional<ShardRequest> read_shard_request(
    const ParallelOptions& options,
    const Settings& settings,
    const Environment& environment,
    std::string_view mixed_precision) {
  const bool is_deepspeed =
      options.deepspeed.has_value() || settings.boolean("use_deepspeed");
  const bool is_fsdp =
      options.fully_sharded.has_value() || settings.boolean("use_fsdp");
  const bool is_megatron = asks_for_megatron(options, settings);
  if (is_deepspeed + is_fsdp + is_megatron > 1) {
    throw ConfigError(concat(
        "[parallel] sharding was asked for in ",
        is_fsdp ? "FSDP's words" : "DeepSpeed's words",
        " and in ",
        is_megatron ? "Megatron-LM's" : "DeepSpeed's",
        "; leave one of them out"));
  }
  if (is_megatron) {
    return read_megatron(
        options.megatron_lm.value_or(MegatronLMOptions()), settings);
  }
  if (is_deepspeed) {
    return read_deepspeed(
        options.deepspeed.value_or(DeepSpeedOptions()),
        settings,
        environment,
        mixed_precision);
  }
  const std::int64_t degree = options.shard
      ? *options.shard
      : settings.integer("parallelism_config_dp_shard_size").value_or(1);
  if (!is_fsdp && degree <= 1) return std::nullopt;
  return read_fully_sharded(options.fully_sharded, settings, mixed_precision);
}

}  // namespace accelerate::detail
