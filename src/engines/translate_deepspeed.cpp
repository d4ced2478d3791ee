#include <utility>

#include <accelerate/error.h>

#include "base/text.h"
#include "engines/deepspeed.h"
#include "engines/fully_sharded.h"
#include "engines/translations.h"

namespace accelerate::detail {

namespace {

// Keys that are handled elsewhere, or do not concern this library.
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
    const std::string& origin,
    std::vector<IgnoredSetting>& ignored) {
  for (const auto& [name, value] : node.items()) {
    const std::string below = dotted_name(path, name);
    // optimizer_from_deepspeed() and scheduler_from_deepspeed() read these.
    if (below == "optimizer" || below == "scheduler") continue;
    if (value.is_object()) {
      list_ignored(value, below, origin, ignored);
    } else if (!is_known_key(below) && value != "auto") {
      ignored.push_back({below, {}, origin});
    }
  }
}

std::string origin_of_config(
    const DeepSpeedOptions& given,
    const Settings& settings) {
  if (!given.hf_ds_config.empty()) return "code";
  const Resolved* const file = settings.find("deepspeed_config_file");
  return file == nullptr ? "code" : format("DeepSpeed file {}", file->text);
}

void require_offload_devices(const DeepSpeedOptions& options) {
  std::vector<std::string> complaints;
  for (const auto& [what, device] :
       {std::pair("optimizer", *options.offload_optimizer_device),
        std::pair("parameters", *options.offload_param_device)}) {
    if (device == "none" || device == "cpu") continue;
    complaints.push_back(format(
        "[parallel] offloading the {} to {} was asked for, which this version "
        "does not have; use cpu, leave it out, or shard over more ranks",
        what,
        device));
  }
  if (!complaints.empty()) throw ConfigError(join(complaints, "\n"));
}

std::optional<DeepSpeedSection> section_of(
    const DeepSpeedConfig& config,
    const std::string& name) {
  const nlohmann::json* const type = config.find(name + ".type");
  if (type == nullptr || !type->is_string()) return std::nullopt;
  const nlohmann::json* const params = config.find(name + ".params");
  return DeepSpeedSection{
      type->get<std::string>(), params == nullptr ? "{}" : params->dump()};
}

}  // namespace

TrainingRequest read_deepspeed(
    const DeepSpeedOptions& given,
    const Settings& settings,
    const Environment& environment,
    std::string_view mixed_precision) {
  DeepSpeedConfig config(given, settings, environment);
  config.set_mixed_precision(mixed_precision);
  const DeepSpeedOptions& found = config.options();
  require_offload_devices(found);

  TrainingRequest request;
  request.engine = Engine::deepspeed;
  const int stage = *found.zero_stage;
  ShardingRequest& sharding = request.sharding.emplace();
  sharding.span = stage == 0 ? ShardSpan::none : ShardSpan::all;
  sharding.shard_parameters = stage == 3;
  sharding.reshard_after_forward = stage == 3;
  sharding.reduce_every_backward = stage >= 2;
  // Shards and their optimizer state are always on the same device.
  sharding.cpu_offload = found.offload_optimizer_device == "cpu" ||
      found.offload_param_device == "cpu";
  sharding.make_on_rank_0 = stage == 3 && found.zero3_init_flag.value_or(false);
  if (mixed_precision != "no") {
    request.precision.sharded =
        sharded_precision(policy_named(mixed_precision, 1));
  }
  // 1 does not count as given: it is also the value of a configuration without
  // the key.
  if (*found.gradient_accumulation_steps > 1) {
    request.step.gradient_accumulation_steps =
        found.gradient_accumulation_steps;
  }
  if (*found.gradient_clipping > 0)
    request.step.gradient_clipping = found.gradient_clipping;
  request.optimizer = section_of(config, "optimizer");
  request.scheduler = section_of(config, "scheduler");
  request.deepspeed_config = config.json().dump();
  list_ignored(
      config.json(), "", origin_of_config(given, settings), request.ignored);
  return request;
}

}  // namespace accelerate::detail
