#include <tuple>

#include "engines/fully_sharded/fully_sharded.h"
#include "engines/option_fields.h"

namespace accelerate::detail {

namespace {

using FsdpOptions = FullyShardedDataParallelOptions;

constexpr std::tuple kFsdpFields{
    OptionField{"fsdp_version", &FsdpOptions::fsdp_version},
    OptionField{"fsdp_sharding_strategy", &FsdpOptions::sharding_strategy},
    OptionField{
        "fsdp_reshard_after_forward",
        &FsdpOptions::reshard_after_forward},
    OptionField{"fsdp_backward_prefetch", &FsdpOptions::backward_prefetch},
    OptionField{"fsdp_forward_prefetch", &FsdpOptions::forward_prefetch},
    OptionField{"fsdp_auto_wrap_policy", &FsdpOptions::auto_wrap_policy},
    OptionField{
        "fsdp_transformer_layer_cls_to_wrap",
        &FsdpOptions::transformer_cls_names_to_wrap},
    OptionField{"fsdp_min_num_params", &FsdpOptions::min_num_params},
    OptionField{"fsdp_offload_params", &FsdpOptions::cpu_offload},
    OptionField{"fsdp_offload_directory", &FsdpOptions::offload_directory},
    OptionField{
        "offload_directory_in_memory",
        &FsdpOptions::offload_directory_in_memory},
    OptionField{"step_in_backward", &FsdpOptions::step_in_backward},
    OptionField{"fsdp_ignored_modules", &FsdpOptions::ignored_modules},
    OptionField{
        "fsdp_activation_checkpointing",
        &FsdpOptions::activation_checkpointing},
    OptionField{
        "fsdp_activation_checkpointing_offload",
        &FsdpOptions::activation_checkpointing_offload},
    OptionField{
        "fsdp_cpu_ram_efficient_loading",
        &FsdpOptions::cpu_ram_efficient_loading}};

bool names_policy(
    const std::optional<FsdpOptions>& given,
    const Settings& settings) {
  return (given && given->auto_wrap_policy) ||
      settings.is_given("fsdp_auto_wrap_policy");
}

void read_strategy(ShardingRequest& sharding, const FsdpOptions& options) {
  sharding.span = ShardSpan::all;
  if (*options.fsdp_version == 1) {
    const ShardingStrategy strategy = *options.sharding_strategy;
    if (strategy == ShardingStrategy::no_shard) sharding.span = ShardSpan::none;
    if (strategy == ShardingStrategy::hybrid_shard ||
        strategy == ShardingStrategy::hybrid_shard_zero2) {
      sharding.span = ShardSpan::node;
    }
    sharding.reshard_after_forward = strategy == ShardingStrategy::full_shard ||
        strategy == ShardingStrategy::hybrid_shard;
  } else if (
      const bool* reshards =
          std::get_if<bool>(&*options.reshard_after_forward)) {
    sharding.reshard_after_forward = *reshards;
  } else {
    sharding.reshard_group_size = std::get<int>(*options.reshard_after_forward);
    sharding.reshard_after_forward = sharding.reshard_group_size != 1;
  }
}

// Lists fields of a policy that belong to the other version.
void list_void_casts(
    std::vector<IgnoredSetting>& ignored,
    const MixedPrecisionPolicy& policy,
    int version) {
  const IgnoredInCode note(ignored);
  note(
      version == 2 && policy.cast_root_forward_inputs,
      "mixed_precision_policy.cast_root_forward_inputs",
      "use cast_forward_inputs");
  note(
      version != 2 && policy.cast_forward_inputs.value_or(false),
      "mixed_precision_policy.cast_forward_inputs");
}

// Reads the policy of `options`, which has one.
void read_precision(
    TrainingRequest& request,
    const std::optional<FsdpOptions>& given,
    const FsdpOptions& options) {
  const MixedPrecisionPolicy& policy = *options.mixed_precision_policy;
  MixedPrecisionPolicy& precision = request.precision.sharded;
  precision = sharded_precision(policy);
  // If the policy comes from the program's precision, autocast returns outputs
  // in fp32, and buffers stay as they are.
  if (!given || !given->mixed_precision_policy) return;
  precision.buffer_dtype = policy.buffer_dtype;
  precision.output_dtype = policy.output_dtype;
  precision.cast_root_forward_inputs = *options.fsdp_version == 2
      ? policy.cast_forward_inputs
      : policy.cast_root_forward_inputs;
  list_void_casts(
      request.ignored, *given->mixed_precision_policy, *options.fsdp_version);
}

// Unlike in PyTorch, a field left unset prefetches: the execution order is
// learned. Version 2 has no such settings; it always gathers ahead.
void read_prefetch(
    ShardingRequest& sharding,
    const std::optional<FsdpOptions>& given,
    const Settings& settings,
    const FsdpOptions& options) {
  const bool is_1 = *options.fsdp_version == 1;
  if (given && given->forward_prefetch) {
    sharding.prefetch_forward = *given->forward_prefetch;
  } else if (is_1 && settings.is_given("fsdp_forward_prefetch")) {
    sharding.prefetch_forward = settings.boolean("fsdp_forward_prefetch");
  }
  std::optional<BackwardPrefetch> backward;
  if (given) backward = given->backward_prefetch;
  if (!backward && settings.is_given("fsdp_backward_prefetch"))
    backward =
        parse_backward_prefetch(*settings.text("fsdp_backward_prefetch"));
  if (!is_1) return;
  sharding.prefetch_backward = backward != BackwardPrefetch::none;
  sharding.prefetch_after_gradients =
      backward == BackwardPrefetch::backward_post;
}

// Lists fields given in code that another field or the version decides.
void list_void_fields(
    TrainingRequest& request,
    const FsdpOptions& given,
    const FsdpOptions& found) {
  const IgnoredInCode note(request.ignored);
  const bool is_2 = request.fsdp_version == 2;
  note(
      is_2 && given.sharding_strategy,
      "sharding_strategy",
      "use reshard_after_forward");
  const auto* const strategy = given.reshard_after_forward
      ? std::get_if<ShardingStrategy>(&*given.reshard_after_forward)
      : nullptr;
  note(
      !is_2 && strategy != nullptr && *strategy != found.sharding_strategy,
      "reshard_after_forward",
      "use sharding_strategy");
  const auto wraps = [&](AutoWrapPolicy policy) {
    return !given.custom_auto_wrap_policy && found.auto_wrap_policy == policy;
  };
  note(
      given.transformer_cls_names_to_wrap &&
          !wraps(AutoWrapPolicy::transformer_based_wrap),
      "transformer_cls_names_to_wrap",
      "it belongs to transformer_based_wrap");
  note(
      given.min_num_params && !wraps(AutoWrapPolicy::size_based_wrap),
      "min_num_params",
      "it belongs to size_based_wrap");
  note(
      given.offload_directory_in_memory && !found.offload_directory,
      "offload_directory_in_memory",
      "there is no offload_directory");
  note(
      given.step_in_backward && !found.offload_directory,
      "step_in_backward",
      "there is no offload_directory");
  if (is_2 || found.sharding_strategy != ShardingStrategy::no_shard) return;
  const std::string instead = "sharding_strategy is no_shard";
  note(
      given.mixed_precision_policy.has_value(),
      "mixed_precision_policy",
      instead);
  note(given.backward_prefetch.has_value(), "backward_prefetch", instead);
  note(given.forward_prefetch.has_value(), "forward_prefetch", instead);
  note(given.limit_all_gathers == false, "limit_all_gathers", instead);
  note(given.ignored_modules.has_value(), "ignored_modules", instead);
  note(
      given.auto_wrap_policy && !*found.activation_checkpointing,
      "auto_wrap_policy",
      instead);
}

// Lists fields that version 2, which always gathers ahead, accepts but does not
// have.
void list_ignored(
    TrainingRequest& request,
    const std::optional<FsdpOptions>& given,
    const Settings& settings) {
  if (request.fsdp_version != 2) return;
  if (given && given->backward_prefetch) {
    request.ignored.push_back({"backward_prefetch", {}, "code"});
  } else if (settings.is_given("fsdp_backward_prefetch")) {
    request.ignored.push_back(
        {"fsdp_backward_prefetch",
         {},
         settings.find("fsdp_backward_prefetch")->where});
  }
}

Settings fsdp_in_force(
    const std::optional<FsdpOptions>& given,
    const FsdpOptions& found,
    const Settings& settings) {
  const FsdpOptions code = given.value_or(FsdpOptions());
  FsdpOptions shown = found;
  // The plugin's defaults for these do not apply: without a value, units are
  // elements of containers, and the execution order is learned.
  shown.auto_wrap_policy.reset();
  shown.forward_prefetch.reset();
  Settings in_force = settings;
  record_fields(in_force, kFsdpFields, code, shown);
  return in_force;
}

}  // namespace

WrapPolicy wrap_policy_of(
    std::optional<AutoWrapPolicy> policy,
    const std::vector<std::string>& class_names,
    std::int64_t min_num_params,
    int fsdp_version) {
  if (!policy) return {};
  switch (*policy) {
    case AutoWrapPolicy::transformer_based_wrap:
      return {.kind = WrapPolicy::Kind::classes, .class_names = class_names};
    case AutoWrapPolicy::size_based_wrap:
      return {
          .kind = fsdp_version == 2 ? WrapPolicy::Kind::size
                                    : WrapPolicy::Kind::remainder,
          .min_num_params = min_num_params};
    case AutoWrapPolicy::no_wrap:
      break;
  }
  return {.kind = WrapPolicy::Kind::none};
}

MixedPrecisionPolicy sharded_precision(const MixedPrecisionPolicy& policy) {
  return {
      .param_dtype = policy.param_dtype,
      .reduce_dtype =
          policy.reduce_dtype ? policy.reduce_dtype : policy.param_dtype};
}

TrainingRequest read_fully_sharded(
    const std::optional<FsdpOptions>& given,
    const Settings& settings,
    std::string_view mixed_precision) {
  const FsdpOptions options = resolve_fully_sharded(
      given.value_or(FsdpOptions()), settings, mixed_precision);
  TrainingRequest request;
  request.engine = Engine::fully_sharded;
  request.fsdp_version = *options.fsdp_version;
  request.settings = fsdp_in_force(given, options, settings);
  list_ignored(request, given, settings);
  if (given) list_void_fields(request, *given, options);
  if (options.mixed_precision_policy) read_precision(request, given, options);
  ShardingRequest& sharding = request.sharding.emplace();
  read_strategy(sharding, options);
  sharding.units.custom = options.custom_auto_wrap_policy;
  if (names_policy(given, settings)) {
    sharding.units.policy = wrap_policy_of(
        options.auto_wrap_policy,
        options.transformer_cls_names_to_wrap.value_or(
            std::vector<std::string>()),
        options.min_num_params.value_or(0),
        *options.fsdp_version);
  }
  sharding.ignored_modules = options.ignored_modules;
  read_prefetch(sharding, given, settings, options);
  sharding.prefetch_depth = *options.limit_all_gathers ? 1 : 2;
  sharding.cpu_offload = *options.cpu_offload;
  if (options.offload_directory) {
    sharding.disk = DiskRequest{
        .keeps_optimizer_state = true,
        .keeps_parameters = true,
        .directory = *options.offload_directory,
        .may_be_in_memory = *options.offload_directory_in_memory,
        .steps_in_backward = *options.step_in_backward};
  }
  sharding.make_on_rank_0 = *options.cpu_ram_efficient_loading;
  sharding.read_on_rank_0 = *options.cpu_ram_efficient_loading;
  if (*options.activation_checkpointing) {
    RecomputationRequest& recomputation = request.recomputation.emplace();
    recomputation.modules = sharding.units;
    recomputation.options.offload_inputs =
        options.activation_checkpointing_offload.value_or(false);
  }
  return request;
}

}  // namespace accelerate::detail
