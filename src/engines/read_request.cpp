#include "engines/read_request.h"

#include <algorithm>
#include <utility>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "engines/translations.h"

namespace accelerate::detail {

namespace {

std::string_view possessive(Engine engine) {
  switch (engine) {
    case Engine::fully_sharded:
      return "FSDP's";
    case Engine::deepspeed:
      return "DeepSpeed's";
    case Engine::megatron_lm:
      return "Megatron-LM's";
    case Engine::none:
      break;
  }
  return "no engine's";
}

// The engine in use. Throws ConfigError if there are two.
Engine engine_of(const ParallelOptions& options, const Settings& settings) {
  std::vector<Engine> used;
  // Reads every switch, even one made unnecessary by code.
  if (settings.boolean("use_fsdp") || options.fully_sharded)
    used.push_back(Engine::fully_sharded);
  if (settings.boolean("use_deepspeed") || options.deepspeed)
    used.push_back(Engine::deepspeed);
  if (uses_megatron_lm(options, settings)) used.push_back(Engine::megatron_lm);
  if (used.size() > 1) {
    throw ConfigError(format(
        "[parallel] sharding was requested in {} settings and in {}; leave one "
        "of them out",
        possessive(used.front()),
        possessive(used.back())));
  }
  return used.empty() ? Engine::none : used.front();
}

TrainingRequest read_engine(const RequestSources& sources, bool is_sharded) {
  const ParallelOptions& options = sources.parallel;
  const Settings& settings = sources.settings;
  switch (engine_of(options, settings)) {
    case Engine::megatron_lm:
      return read_megatron_lm(
          options.megatron_lm.value_or(MegatronLMOptions()), settings);
    case Engine::deepspeed:
      return read_deepspeed(
          options.deepspeed.value_or(DeepSpeedOptions()),
          settings,
          sources.environment,
          {sources.mixed_precision, sources.precision_is_open});
    case Engine::fully_sharded:
      return read_fully_sharded(
          options.fully_sharded, settings, sources.mixed_precision);
    case Engine::none:
      break;
  }
  if (!is_sharded) return {};
  // Only a degree is given: FSDP's defaults apply.
  TrainingRequest request =
      read_fully_sharded(std::nullopt, settings, sources.mixed_precision);
  request.engine = Engine::none;
  return request;
}

RecomputationRequest recomputation_of(
    const ActivationCheckpointingOptions& options) {
  return {
      .modules =
          {.policy = wrap_policy_of(
               options.auto_wrap_policy,
               options.transformer_cls_names_to_wrap,
               options.min_num_params,
               /*fsdp_version=*/1),
           .custom = options.custom_auto_wrap_policy},
      .options = options.options};
}

// Lists fields that the options give for a policy they do not choose.
void list_void_fields(
    const ActivationCheckpointingOptions& options,
    std::vector<IgnoredSetting>& ignored) {
  const auto chooses = [&](AutoWrapPolicy policy) {
    return !options.custom_auto_wrap_policy &&
        options.auto_wrap_policy == policy;
  };
  if (!options.transformer_cls_names_to_wrap.empty() &&
      !chooses(AutoWrapPolicy::transformer_based_wrap)) {
    ignored.push_back(
        {"activation_checkpointing.transformer_cls_names_to_wrap",
         "it belongs to transformer_based_wrap",
         "code"});
  }
  if (options.min_num_params != 0 &&
      !chooses(AutoWrapPolicy::size_based_wrap)) {
    ignored.push_back(
        {"activation_checkpointing.min_num_params",
         "it belongs to size_based_wrap",
         "code"});
  }
}

int degree_of(const std::array<int, kNumAxes>& degrees, Axis axis) {
  return degrees[static_cast<std::size_t>(axis)];
}

// The Accelerator's options, overridden by a model's where given. Degrees that
// cannot differ between models are the mesh's.
ParallelOptions options_of_model(
    const ModelOptions& own,
    const ParallelOptions& common,
    const std::array<int, kNumAxes>& degrees) {
  ParallelOptions options = common;
  options.parallelism_config.reset();
  options.pipeline = degree_of(degrees, Axis::pipeline);
  options.tensor = degree_of(degrees, Axis::tensor);
  options.context = degree_of(degrees, Axis::context);
  options.expert = degree_of(degrees, Axis::expert);
  const bool names_engine = own.fully_sharded || own.deepspeed;
  if (names_engine) {
    options.fully_sharded = own.fully_sharded;
    options.deepspeed = own.deepspeed;
    options.megatron_lm.reset();
    options.activation_checkpointing.reset();
  }
  if (own.parallelize_plan) options.parallelize_plan = own.parallelize_plan;
  if (own.activation_checkpointing)
    options.activation_checkpointing = own.activation_checkpointing;
  if (own.replicate || own.shard) {
    const int ranks =
        degree_of(degrees, Axis::replicate) * degree_of(degrees, Axis::shard);
    // make_plan reports degrees that do not divide the ranks.
    const auto rest = [&](std::optional<int> degree) -> std::optional<int> {
      if (!degree || *degree < 1 || ranks % *degree != 0) return std::nullopt;
      return ranks / *degree;
    };
    options.replicate = own.replicate ? own.replicate : rest(own.shard);
    options.shard = own.shard ? own.shard : rest(own.replicate);
  } else if (names_engine) {
    options.shard.reset();
  } else {
    options.replicate = degree_of(degrees, Axis::replicate);
    options.shard = degree_of(degrees, Axis::shard);
  }
  return options;
}

// Chooses the degrees of a model that only gives a sharding strategy: the other
// models' degrees where they fit the strategy.
void choose_degrees(
    TrainingRequest& request,
    const std::array<int, kNumAxes>& degrees,
    int num_local_ranks) {
  const int replicas = degree_of(degrees, Axis::replicate);
  const int shards = degree_of(degrees, Axis::shard);
  const int ranks = replicas * shards;
  int chosen = 1;
  switch (request.sharding ? request.sharding->span : ShardSpan::none) {
    case ShardSpan::none:
      break;
    case ShardSpan::all:
      chosen = shards > 1 ? shards : ranks;
      break;
    case ShardSpan::node:
      if (replicas > 1 && shards > 1) {
        chosen = shards;
      } else {
        chosen = ranks % num_local_ranks == 0 ? num_local_ranks : ranks;
      }
      break;
  }
  request.degree(Axis::shard) = chosen;
  request.degree(Axis::replicate) = ranks / chosen;
}

// Takes the degree that DeepSpeed's configuration gives, unless the program or
// the launcher gives another.
void take_autotp_size(
    const RequestSources& sources,
    int autotp_size,
    std::optional<int>& degree,
    std::vector<std::string>& complaints) {
  const bool is_from_code =
      sources.parallel.tensor || sources.parallel.parallelism_config;
  // Accelerate's launcher passes degrees of 1, too.
  if (!degree || (*degree == 1 && !is_from_code)) degree = autotp_size;
  if (*degree == autotp_size) return;
  complaints.push_back(format(
      "[parallel] tensor is {}, but tensor_parallel.autotp_size of the "
      "DeepSpeed configuration is {}; leave one of them out",
      *degree,
      autotp_size));
}

}  // namespace

TrainingRequest read_training_request(const RequestSources& sources) {
  std::vector<std::string> complaints;
  const auto degrees =
      read_degrees(sources.parallel, sources.settings, complaints);
  TrainingRequest request;
  try {
    request = read_engine(
        sources,
        degrees[static_cast<std::size_t>(Axis::shard)].value_or(1) > 1);
  } catch (const ConfigError& error) {
    // Megatron-LM's settings have already been read for the degrees.
    if (std::find(complaints.begin(), complaints.end(), error.what()) ==
        complaints.end()) {
      complaints.emplace_back(error.what());
    }
  }
  const std::optional<int> autotp_size = request.degree(Axis::tensor);
  request.degrees = degrees;
  request.shard_degree_is_given = request.degree(Axis::shard).has_value();
  if (autotp_size) {
    take_autotp_size(
        sources, *autotp_size, request.degree(Axis::tensor), complaints);
  }
  if (const auto& config = sources.parallel.parallelism_config;
      config && complaints.empty()) {
    for (auto& setting : parallelism_without_effect(*config, sources.settings))
      request.ignored.push_back(std::move(setting));
  }
  request.complaints = std::move(complaints);
  // DeepSpeed's configuration may choose the precision.
  if (request.engine != Engine::deepspeed)
    request.precision.mixed_precision = sources.mixed_precision;
  request.parallelize_plan = sources.parallel.parallelize_plan;
  if (request.parallelize_plan && request.divides_sequences) {
    request.divides_sequences = false;
    const std::string key = "megatron_lm_sequence_parallelism";
    const Resolved* const launched = sources.settings.find(key);
    request.ignored.push_back(
        {"sequence_parallelism",
         "parallelize_plan names SequenceParallel layers",
         launched == nullptr || !sources.settings.is_given(key)
             ? "code"
             : launched->where,
         key});
  }
  if (request.degree(Axis::context).value_or(1) > 1 &&
      request.complaints.empty()) {
    request.sequence =
        read_sequence_request(sources.parallel, sources.settings);
  }
  if (const auto& options = sources.parallel.activation_checkpointing) {
    request.recomputation = recomputation_of(*options);
    list_void_fields(*options, request.ignored);
  }
  return request;
}

// Whether code or launcher gives the degree for all models.
bool gives_shard_degree(const RequestSources& sources) {
  std::vector<std::string> complaints;  // reported with the Accelerator's own
  const auto degrees =
      read_degrees(sources.parallel, sources.settings, complaints);
  return degrees[static_cast<std::size_t>(Axis::shard)].has_value();
}

TrainingRequest read_model_request(
    const ModelOptions& options,
    const RequestSources& sources,
    const std::array<int, kNumAxes>& degrees) {
  RequestSources own = sources;
  own.parallel = options_of_model(options, sources.parallel, degrees);
  TrainingRequest request = read_training_request(own);
  const bool names_engine = options.fully_sharded || options.deepspeed;
  if (names_engine && !options.replicate && !options.shard)
    choose_degrees(request, degrees, sources.num_local_ranks);
  request.shard_degree_is_given = options.shard.has_value() ||
      (!names_engine && !options.replicate && gives_shard_degree(sources));
  return request;
}

}  // namespace accelerate::detail
