#include "engines/request/read_request.h"

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include <accelerate/error.h>

#include "base/require.h"
#include "base/text/text.h"
#include "engines/deepspeed/deepspeed.h"
#include "engines/fully_sharded/fully_sharded.h"
#include "engines/megatron_lm/megatron_lm.h"
#include "engines/parallelism.h"
#include "engines/request/degrees.h"

namespace accelerate::detail {

namespace {

// Megatron-LM's options in code, and as resolved.
struct MegatronLM {
  MegatronArguments given;
  MegatronLMOptions found;
};

// Reads the settings of the engine in use. `megatron` is null if its options are
// not in use, or could not be resolved. Throws ConfigError for two engines.
TrainingRequest read_engine(
    const RequestSources& sources,
    const MegatronLM* megatron,
    bool is_sharded) {
  const ParallelOptions& options = sources.parallel;
  const Settings& settings = sources.settings;
  struct Switch {
    Engine engine;
    const char* key;
    bool is_in_code;
  };
  const std::array<Switch, 3> switches{{
      {Engine::fully_sharded, "use_fsdp", options.fully_sharded.has_value()},
      {Engine::deepspeed, "use_deepspeed", options.deepspeed.has_value()},
      {Engine::megatron_lm, "use_megatron_lm", options.megatron_lm.has_value()},
  }};
  std::vector<Engine> used;
  // Reads every switch, even one made unnecessary by code.
  for (const Switch& each : switches) {
    if (settings.boolean(each.key) || each.is_in_code)
      used.push_back(each.engine);
  }
  if (used.size() > 1) {
    throw ConfigError(format(
        "[parallel] sharding was requested in {} settings and in {}; leave one "
        "of them out",
        possessive(used.front()),
        possessive(used.back())));
  }
  const Engine engine = used.empty() ? Engine::none : used.front();
  TrainingRequest request;
  if (engine == Engine::megatron_lm) {
    if (megatron != nullptr)
      request = read_megatron_lm(megatron->given, megatron->found, settings);
  } else if (engine == Engine::deepspeed) {
    request = read_deepspeed(
        options.deepspeed.value_or(DeepSpeedOptions()),
        settings,
        sources.environment,
        {sources.mixed_precision, sources.precision_is_open});
  } else {
    if (engine == Engine::fully_sharded || is_sharded) {
      request = read_fully_sharded(
          options.fully_sharded, settings, sources.mixed_precision);
    }
    // If only a degree is given, FSDP's defaults apply, but not its name.
    if (engine == Engine::none) request.settings = settings;
    request.engine = engine;
  }
  for (const Switch& each : switches) {
    if (each.is_in_code) request.settings.overrule(each.key, true, "code");
  }
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
  // Accelerate's launcher passes degrees of 1 as well.
  if (!degree || (*degree == 1 && !is_from_code)) degree = autotp_size;
  if (*degree != autotp_size) {
    complaints.push_back(format(
        "[parallel] tensor is {}, but tensor_parallel.autotp_size of the "
        "DeepSpeed configuration is {}; leave one of them out",
        *degree,
        autotp_size));
  }
}

// Reads the program's options beside the engine's.
void read_other_options(
    TrainingRequest& request,
    const ParallelOptions& options,
    const Settings& launched) {
  request.parallelize_plan = options.parallelize_plan;
  if (request.parallelize_plan && request.divides_sequences) {
    request.divides_sequences = false;
    const std::string key = "megatron_lm_sequence_parallelism";
    request.ignored.push_back(
        {"sequence_parallelism",
         "parallelize_plan names SequenceParallel layers",
         launched.is_given(key) ? launched.find(key)->where : "code",
         key});
  }
  if (const auto& recomputation = options.activation_checkpointing) {
    request.recomputation = recomputation_of(*recomputation);
    list_void_fields(*recomputation, request.ignored);
  }
}

}  // namespace

TrainingRequest read_training_request(const RequestSources& sources) {
  const ParallelOptions& options = sources.parallel;
  const Settings& settings = sources.settings;
  std::vector<std::string> complaints;
  std::optional<ParallelismConfig> config;
  attempt(complaints, [&] {
    config = resolve_parallelism(
        options.parallelism_config.value_or(ParallelismConfig()), settings);
  });
  std::optional<MegatronLM> megatron;
  if (settings.boolean("use_megatron_lm") || options.megatron_lm) {
    attempt(complaints, [&] {
      auto given = read_megatron_arguments(
          options.megatron_lm.value_or(MegatronLMOptions()));
      auto found = resolve_megatron_lm(given, settings);
      megatron = {std::move(given), std::move(found)};
    });
  }
  const auto degrees = read_degrees(
      options,
      settings,
      config ? &*config : nullptr,
      megatron ? &megatron->found : nullptr,
      complaints);
  TrainingRequest request;
  attempt(complaints, [&] {
    request = read_engine(
        sources,
        megatron ? &*megatron : nullptr,
        degrees[static_cast<std::size_t>(Axis::shard)].value_or(1) > 1);
  });
  const std::optional<int> autotp_size = request.degree(Axis::tensor);
  request.degrees = degrees;
  request.shard_degree_is_given = request.degree(Axis::shard).has_value();
  if (autotp_size) {
    take_autotp_size(
        sources, *autotp_size, request.degree(Axis::tensor), complaints);
  }
  // DeepSpeed's configuration may choose the precision.
  if (request.engine != Engine::deepspeed)
    request.precision.mixed_precision = sources.mixed_precision;
  if (complaints.empty()) {
    read_sequences(request, options.parallelism_config, *config);
    record_degrees(request.settings, options);
  } else {
    request.settings = settings;
    request.complaints = std::move(complaints);
  }
  read_other_options(request, options, settings);
  return request;
}

TrainingRequest read_model_request(
    const ModelOptions& options,
    const RequestSources& sources,
    const std::array<int, kNumAxes>& degrees,
    bool shard_degree_is_given) {
  RequestSources own = sources;
  own.parallel = options_of_model(options, sources.parallel, degrees);
  TrainingRequest request = read_training_request(own);
  const bool names_engine = options.fully_sharded || options.deepspeed;
  if (names_engine && !options.replicate && !options.shard)
    choose_degrees(request, degrees, sources.num_local_ranks);
  request.shard_degree_is_given = options.shard.has_value() ||
      (!names_engine && !options.replicate && shard_degree_is_given);
  return request;
}

}  // namespace accelerate::detail
