#include "train/accelerator/session_settings.h"

#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "base/text/text.h"
#include "engines/settings_in_force.h"

namespace accelerate::detail {

namespace {

void add_world_options(Source& source, const AcceleratorOptions& options) {
  const WorldOptions& world = options.world;
  const bool keeps_to_cpu = options.cpu.value_or(false);
  if (keeps_to_cpu || world.device) {
    const at::Device device = keeps_to_cpu ? at::kCPU : *world.device;
    source.add("device", device.str(), "code");
    source.add("use_cpu", device.is_cpu() ? "true" : "false", "code");
  }
  if (world.timeout) {
    source.add(
        "timeout_seconds",
        format("{}", static_cast<double>(world.timeout->count()) / 1000),
        "code");
  }
  if (world.transport) source.add("transport", *world.transport, "code");
  if (world.debug) source.add("debug", *world.debug ? "true" : "false", "code");
}

// The options given in code, as another source of settings.
Source source_from_code(const AcceleratorOptions& options) {
  Source source{Origin::code, {}};
  const auto add = [&](std::string_view key, const auto& value) {
    if (value) source.add(key, format("{}", *value), "code");
  };
  if (options.mixed_precision) {
    source.add(
        "mixed_precision",
        std::string(name_of(*options.mixed_precision)),
        "code");
  }
  if (const auto cpu = options.cpu ? options.cpu : options.world.cpu)
    source.add("use_cpu", *cpu ? "true" : "false", "code");
  add_world_options(source, options);
  add("run_name", options.run_name);
  add("gradient_accumulation_steps",
      options.gradient_accumulation.num_steps
          ? options.gradient_accumulation.num_steps
          : options.gradient_accumulation_steps);
  source.values.merge(source_of_options(options.parallel).values);
  return source;
}

}  // namespace

SettingsInForce settings_in_force(
    const AcceleratorOptions& options,
    const Decisions& decisions,
    const World& world) {
  const RequestSources& sources = decisions.request_sources;
  const std::array all{
      source_from_handover(sources.environment),
      source_from_environment(sources.environment),
      source_from_code(options)};
  Settings settings = resolve(all);
  settings.share_reads_with(sources.settings);
  if (options.world.logger) {
    for (const char* key : {"log_level", "log_levels", "log_format"})
      settings.mark_read(key);
  }

  const TrainingRequest& training = decisions.plan_request.training;
  std::vector<IgnoredSetting> ignored = training.ignored;
  ignored.insert(
      ignored.end(),
      decisions.plan.ignored.begin(),
      decisions.plan.ignored.end());
  for (auto& overruled : settle_engine(settings, sources, training))
    ignored.push_back(std::move(overruled));
  settings.settle(
      "device",
      world.device().str(),
      settings.boolean("use_cpu")   ? settings.find("use_cpu")->where
          : world.device().is_cpu() ? "no accelerator"
                                    : "the accelerator of this local rank");
  settings.settle(
      "mixed_precision", std::string(name_of(decisions.precision)), "default");
  if (decisions.precision != requested_precision(options, sources.settings)) {
    settings.overrule(
        "mixed_precision",
        std::string(name_of(decisions.precision)),
        "DeepSpeed configuration");
  }
  settings.settle(
      "gradient_accumulation_steps",
      std::to_string(decisions.window),
      training.step.gradient_accumulation_steps ? "DeepSpeed configuration"
                                                : "default");
  settings.settle(
      "timeout_seconds",
      format("{}", static_cast<double>(world.timeout().count()) / 1000),
      "default");
  for (const auto& [key, axis] :
       {std::pair("parallelism_config_pp_size", Axis::pipeline),
        std::pair("parallelism_config_dp_replicate_size", Axis::replicate),
        std::pair("parallelism_config_dp_shard_size", Axis::shard),
        std::pair("parallelism_config_ep_size", Axis::expert),
        std::pair("parallelism_config_cp_size", Axis::context),
        std::pair("parallelism_config_tp_size", Axis::tensor)}) {
    settings.settle(
        key,
        std::to_string(decisions.plan.degree(axis)),
        "from the number of ranks");
  }
  return {std::move(settings), std::move(ignored)};
}

}  // namespace accelerate::detail
