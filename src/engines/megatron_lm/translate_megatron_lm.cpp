#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <accelerate/error.h>

#include "engines/megatron_lm/megatron_fields.h"
#include "engines/megatron_lm/megatron_lm.h"
#include "engines/option_fields.h"

namespace accelerate::detail {

namespace {

constexpr std::string_view kMegatronSchedule =
    "make the schedule with scheduler_from_megatron_lm()";

// Why a field does not act, with what to use instead; unset if it does.
std::optional<std::string> void_reason(
    const MegatronField& field,
    const MegatronLMOptions& found) {
  const bool recomputes = *found.recompute_activations;
  bool acts = false;
  std::string reason(field.instead);
  switch (field.use) {
    case MegatronUse::always:
      acts = true;
      break;
    case MegatronUse::split_layers:
      acts = *found.tp_degree > 1;
      break;
    case MegatronUse::stages:
      acts = *found.pp_degree > 1;
      break;
    case MegatronUse::recomputing_full:
      acts = recomputes && *found.recompute_granularity != "selective";
      if (recomputes) {
        reason = "it belongs to recompute_granularity full";
        break;
      }
      [[fallthrough]];
    case MegatronUse::recomputing:
      acts = recomputes;
      reason = "it belongs to recompute_activations";
      break;
    case MegatronUse::schedule:
      reason = kMegatronSchedule;
      break;
  }
  return acts ? std::nullopt : std::optional(reason);
}

// Whether the launcher gives a value other than the default, which Accelerate's
// launcher always passes.
bool is_launched(const Settings& settings, std::string_view key) {
  if (key.empty() || !settings.is_given(key)) return false;
  const OptionSpec& spec = *find_option(key);
  return spec.default_value.empty() ||
      settings.find(key)->value != parse_option(spec, spec.default_value);
}

// Lists the launcher's options for what Megatron-LM builds or does by itself.
void list_carried(
    const Settings& settings,
    std::vector<IgnoredSetting>& ignored) {
  constexpr std::string_view kPrefix = "megatron_lm_";
  for (const OptionSpec& spec : option_table()) {
    if (spec.use == OptionUse::acts || !spec.key.starts_with(kPrefix) ||
        !is_launched(settings, spec.key))
      continue;
    ignored.push_back(
        {.name = std::string(spec.key.substr(kPrefix.size())),
         .origin = settings.find(spec.key)->where,
         .key = std::string(spec.key)});
  }
}

// What to use instead of an argument that has no meaning here.
std::string_view instead_of(std::string_view argument) {
  if (argument == "lr_mult") return "use parameter groups";
  if (argument == "consumed_samples") return "use save_state and load_state";
  return {};
}

// Lists what the program, its model or another option decides.
std::vector<IgnoredSetting> list_void_megatron_fields(
    const MegatronArguments& given,
    const MegatronLMOptions& found,
    const Settings& settings) {
  std::vector<IgnoredSetting> ignored;
  visit_megatron_fields(
      [&](std::string_view name, auto member, const MegatronField& field) {
        const auto reason = void_reason(field, found);
        const std::string_view key = megatron_key(name);
        const bool is_in_code = (given.options.*member).has_value();
        if (!reason || (!is_in_code && !is_launched(settings, key))) return;
        ignored.push_back(
            {.name = std::string(name),
             .instead = *reason,
             .origin = is_in_code ? "code" : settings.find(key)->where,
             .key = is_in_code ? std::string() : std::string(key),
             .belongs_to_schedule = field.use == MegatronUse::schedule});
      });
  list_carried(settings, ignored);
  const auto list = [&](const std::string& name, std::string_view instead) {
    ignored.push_back(
        {.name = "other_megatron_args." + name,
         .instead = std::string(instead),
         .origin = "code",
         .belongs_to_schedule = instead == kMegatronSchedule});
  };
  for (const std::string& name : given.schedule_names)
    list(name, kMegatronSchedule);
  for (const std::string& name : given.unknown) list(name, instead_of(name));
  return ignored;
}

RecomputationRequest read_recomputation(const MegatronLMOptions& found) {
  RecomputationRequest request;
  if (*found.recompute_granularity == "selective") {
    request.modules.policy.kind = WrapPolicy::Kind::attention;
    return request;
  }
  if (*found.recompute_method == "block") {
    request.num_modules = found.recompute_num_layers;
  } else {
    request.modules_together = *found.recompute_num_layers;
  }
  return request;
}

Settings megatron_in_force(
    const MegatronLMOptions& given,
    const MegatronLMOptions& found,
    const Settings& settings) {
  Settings in_force = settings;
  visit_megatron_fields(
      [&](std::string_view name, auto member, const MegatronField&) {
        if (const std::string_view key = megatron_key(name); !key.empty())
          record(in_force, key, given.*member, found.*member);
      });
  return in_force;
}

PipelineRequest read_pipeline(
    const MegatronLMOptions& given,
    const MegatronLMOptions& found,
    const Settings& settings) {
  PipelineRequest request;
  // The default of 1 would leave all stages but one idle.
  if (given.num_micro_batches ||
      settings.is_given("megatron_lm_num_micro_batches"))
    request.num_micro_batches = found.num_micro_batches;
  request.layers_per_chunk = found.num_layers_per_virtual_pipeline_stage;
  request.layers_of_last_rank = found.decoder_last_pipeline_num_layers;
  return request;
}

}  // namespace

TrainingRequest read_megatron_lm(
    const MegatronArguments& given,
    const MegatronLMOptions& found,
    const Settings& settings) {
  TrainingRequest request;
  request.engine = Engine::megatron_lm;
  request.settings = megatron_in_force(given.options, found, settings);
  ShardingRequest& sharding = request.sharding.emplace();
  // Megatron's own FSDP shards parameters; its optimizer shards only its state.
  sharding.shard_parameters = *found.use_custom_fsdp;
  sharding.reshard_after_forward = *found.use_custom_fsdp;
  const bool shards =
      *found.use_custom_fsdp || *found.use_distributed_optimizer;
  sharding.span = shards ? ShardSpan::all : ShardSpan::none;
  sharding.cpu_offload = *found.optimizer_cpu_offload;
  if (sharding.cpu_offload && !shards) {
    throw ConfigError(
        "[parallel] optimizer_cpu_offload needs sharded optimizer state; set "
        "use_distributed_optimizer as well");
  }
  if (*found.gradient_clipping > 0)
    request.step.gradient_clipping = found.gradient_clipping;
  if (*found.recompute_activations)
    request.recomputation = read_recomputation(found);
  request.step.weighs_by_items = *found.calculate_per_token_loss;
  request.precision.master_weights = *found.use_precision_aware_optimizer;
  request.checkpoints.saves_optimizers = !*found.no_save_optim;
  request.checkpoints.loads_optimizers = !*found.no_load_optim;
  if (*found.pp_degree > 1)
    request.pipeline = read_pipeline(given.options, found, settings);
  request.infers_plan = *found.tp_degree > 1;
  request.divides_sequences =
      request.infers_plan && *found.sequence_parallelism;
  request.experts.splits_over_tensor = *found.expert_tensor_parallel_size > 1;
  request.ignored = list_void_megatron_fields(given, found, settings);
  return request;
}

}  // namespace accelerate::detail
