#include "train/accelerator/decisions.h"

#include <chrono>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include <accelerate/error.h>

#include "base/process/signal_flag.h"
#include "base/require.h"
#include "base/text/text.h"
#include "checkpoint/run/save_target.h"
#include "engines/fp8_recipe.h"
#include "precision/support.h"
#include "train/settings/ignored_options.h"

namespace accelerate::detail {

namespace {

using Seconds = std::chrono::duration<double>;

// Applies the window that a DeepSpeed configuration sets, if any.
void apply_window_of_engine(
    const AcceleratorOptions& options,
    Decisions& decisions,
    std::vector<std::string>& complaints) {
  const auto& steps =
      decisions.plan_request.training.step.gradient_accumulation_steps;
  const bool is_set = options.gradient_accumulation_steps.value_or(1) > 1 ||
      options.gradient_accumulation.num_steps;
  if (steps && is_set && decisions.window != *steps) {
    complaints.push_back(format(
        "[train] gradient_accumulation_steps is {}, but {} in the DeepSpeed "
        "configuration; correct it there, or write \"auto\"",
        decisions.window,
        *steps));
  }
  if (steps) decisions.window = *steps;
}

void read_float8(
    const AcceleratorOptions& options,
    const Settings& settings,
    const Environment& environment,
    Decisions& decisions) {
  const std::int64_t statistics_interval = options.fp8_statistics_interval;
  if (statistics_interval < 0) {
    throw ConfigError(format(
        "[train] fp8_statistics_interval must be a number of steps, or 0 for "
        "none, but is {}",
        statistics_interval));
  }
  if (decisions.precision == Precision::fp8) {
    decisions.plan_request.float8 =
        read_float8_request(options.fp8_recipe, settings, environment);
    decisions.plan_request.float8->statistics_interval = statistics_interval;
    decisions.plan_request.float8->attention = options.fp8_attention;
  } else {
    for (const auto& [name, is_given] :
         {std::pair("fp8_recipe", options.fp8_recipe.has_value()),
          std::pair("fp8_statistics_interval", statistics_interval != 0),
          std::pair(
              "fp8_attention",
              options.fp8_attention != Float8Attention::none)}) {
      if (is_given) {
        decisions.plan_request.training.ignored.push_back(
            {name, "mixed_precision is not fp8", "code"});
      }
    }
  }
}

// Makes a scaler for fp16, and checks its options even where none is needed.
void make_scaler(
    const GradScalerOptions& options,
    const World& world,
    Decisions& decisions) {
  if (decisions.precision == Precision::fp16) {
    decisions.scaler.emplace(
        options,
        world.device(),
        world.size() > 1 ? std::optional<Group>(world.group()) : std::nullopt);
  } else {
    const GradScaler checked(options);
  }
}

// Puts the code's options into the settings in force.
void record_options(Settings& settings, const AcceleratorOptions& options) {
  const WorldOptions& world = options.world;
  const auto give = [&](std::string_view key, const auto& value) {
    if (value) settings.overrule(key, *value, "code");
  };
  if (options.mixed_precision) {
    give(
        "mixed_precision",
        std::optional(std::string(name_of(*options.mixed_precision))));
  }
  give("use_cpu", options.cpu ? options.cpu : world.cpu);
  const bool keeps_to_cpu = options.cpu.value_or(false);
  if (keeps_to_cpu || world.device) {
    const at::Device device = keeps_to_cpu ? at::kCPU : *world.device;
    give("device", std::optional(device.str()));
    give("use_cpu", std::optional(device.is_cpu()));
  }
  if (world.timeout)
    give("timeout_seconds", std::optional(Seconds(*world.timeout).count()));
  give("transport", world.transport);
  give("debug", world.debug);
  give("run_name", options.run_name);
  const auto& num_steps = options.gradient_accumulation.num_steps;
  give(
      "gradient_accumulation_steps",
      num_steps ? num_steps : options.gradient_accumulation_steps);
  if (world.logger) {
    for (const char* const key : {"log_level", "log_levels", "log_format"})
      settings.mark_read(key);
  }
}

// Fills in what code and launcher leave open.
void record_choices(
    Decisions& decisions,
    Precision requested,
    const World& world) {
  Settings& settings = decisions.settings;
  const std::string config = "DeepSpeed configuration";
  const std::string precision(name_of(decisions.precision));
  if (decisions.precision == requested) {
    settings.settle("mixed_precision", precision, "default");
  } else {
    settings.overrule("mixed_precision", precision, config);
  }
  settings.settle(
      "gradient_accumulation_steps",
      decisions.window,
      decisions.plan_request.training.step.gradient_accumulation_steps
          ? config
          : "default");
  const at::Device device = world.device();
  settings.settle(
      "device",
      device.str(),
      settings.boolean("use_cpu") ? settings.find("use_cpu")->where
          : device.is_cpu()       ? "no accelerator"
                                  : "the accelerator of this local rank");
  settings.settle(
      "timeout_seconds", Seconds(world.timeout()).count(), "default");
  for (const auto& [key, axis] :
       {std::pair("parallelism_config_pp_size", Axis::pipeline),
        std::pair("parallelism_config_dp_replicate_size", Axis::replicate),
        std::pair("parallelism_config_dp_shard_size", Axis::shard),
        std::pair("parallelism_config_ep_size", Axis::expert),
        std::pair("parallelism_config_cp_size", Axis::context),
        std::pair("parallelism_config_tp_size", Axis::tensor)}) {
    settings.settle(
        key, decisions.plan.degree(axis), "from the number of ranks");
  }
}

PlanRequest plan_request_of(
    const AcceleratorOptions& options,
    const std::vector<AddedTechnique>& added,
    const World& world,
    const Environment& environment,
    TrainingRequest training) {
  const bool has_masters =
      options.master_weights || training.precision.master_weights;
  return {
      .training = std::move(training),
      .replicate = options.parallel.replicate_options,
      .master_weights = has_masters,
      .keep_freed_blocks = options.keep_freed_blocks,
      .heap_is_tuned = environment.has("MALLOC_MMAP_THRESHOLD_"),
      .num_ranks = world.size(),
      .num_local_ranks = world.local_size(),
      .device = world.device(),
      .added = added};
}

// Collects settings without effect: for the engine, for the plan, or beside a
// DeepSpeed configuration.
void collect_ignored(Decisions& decisions) {
  TrainingRequest& training = decisions.plan_request.training;
  // Code overrules the launcher anyway.
  std::erase_if(training.overruled, [&](const IgnoredSetting& setting) {
    return decisions.settings.find(setting.name)->where == "code";
  });
  for (auto* const ignored :
       {&training.ignored, &decisions.plan.ignored, &training.overruled}) {
    std::move(
        ignored->begin(),
        ignored->end(),
        std::back_inserter(decisions.ignored));
    ignored->clear();
  }
}

}  // namespace

int accumulation_window(
    const AcceleratorOptions& options,
    const Settings& settings) {
  const auto& steps = options.gradient_accumulation_steps;
  const auto& num_steps = options.gradient_accumulation.num_steps;
  if (steps && num_steps && *steps != 1 && *steps != *num_steps) {
    throw ConfigError(format(
        "[train] gradient_accumulation_steps is {}, but "
        "gradient_accumulation.num_steps is {}; set only one of them",
        *steps,
        *num_steps));
  }
  const int window = num_steps ? *num_steps
      : steps
      ? *steps
      : static_cast<int>(*settings.integer("gradient_accumulation_steps"));
  return require_at_least("train", "gradient_accumulation_steps", window, 1);
}

Decisions decide(
    const AcceleratorOptions& options,
    const std::vector<AddedTechnique>& added,
    const World& world,
    const Settings& settings,
    const Environment& environment) {
  Decisions decisions;
  std::vector<std::string> complaints;
  attempt(complaints, [&] {
    decisions.window = accumulation_window(options, settings);
  });
  attempt(complaints, [&] { SignalFlag::check(options.preemption_signals); });
  // An engine may change it.
  const Precision requested = options.mixed_precision
      ? *options.mixed_precision
      : parse_precision(*settings.text("mixed_precision"));
  decisions.request_sources = {
      .parallel = options.parallel,
      .mixed_precision = std::string(name_of(requested)),
      // Accelerate's launcher always passes a precision, "no" by default.
      .precision_is_open =
          !options.mixed_precision && requested == Precision::no,
      .num_local_ranks = world.local_size(),
      .settings = settings,
      .environment = environment};
  TrainingRequest training = read_training_request(decisions.request_sources);
  // DeepSpeed's configuration chooses the precision if nothing else did.
  const std::string chosen = training.precision.mixed_precision;
  const Precision precision = parse_precision(chosen);
  decisions.precision = precision;
  decisions.request_sources.mixed_precision = chosen;
  decisions.request_sources.precision_is_open = false;
  decisions.plan_request =
      plan_request_of(options, added, world, environment, std::move(training));
  if (auto complaint = precision_complaint(precision, world.device()))
    complaints.push_back(*complaint);
  attempt(
      complaints, [&] { make_scaler(options.grad_scaler, world, decisions); });
  attempt(complaints, [&] { require_valid(options.project_configuration); });
  attempt(complaints, [&] {
    auto& ignored = decisions.plan_request.training.ignored;
    for (auto& setting : options_without_effect(options, precision))
      ignored.push_back(std::move(setting));
  });
  attempt(complaints, [&] {
    read_float8(options, settings, environment, decisions);
  });
  attempt(
      complaints, [&] { decisions.plan = make_plan(decisions.plan_request); });
  apply_window_of_engine(options, decisions, complaints);
  if (!complaints.empty()) throw ConfigError(join(complaints, "\n"));
  decisions.settings = std::move(decisions.plan_request.training.settings);
  record_options(decisions.settings, options);
  record_choices(decisions, requested, world);
  collect_ignored(decisions);
  return decisions;
}

}  // namespace accelerate::detail
