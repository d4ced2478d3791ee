#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "engines/deepspeed/deepspeed.h"
#include "engines/deepspeed/deepspeed_disk.h"
#include "engines/fully_sharded/fully_sharded.h"
#include "engines/option_fields.h"

namespace accelerate::detail {

namespace {

// kAuto leaves a number unset.
template <class T>
std::optional<T> or_nullopt_if_auto(const std::optional<T>& value) {
  if constexpr (std::is_same_v<T, int> || std::is_same_v<T, double>) {
    if (value == T{kAuto}) return std::nullopt;
  }
  return value;
}

// Keys that are handled elsewhere, or do not concern this library.
bool is_known_key(std::string_view path) {
  bool is_known = false;
  visit_deepspeed_fields([&](std::string_view, auto, std::string_view known) {
    is_known = is_known || path == known;
  });
  for (const std::string_view known :
       {"train_batch_size",
        "train_micro_batch_size_per_gpu",
        "steps_per_print",
        "fp16.enabled",
        "fp16.auto_cast",
        "bf16.enabled",
        "tensor_parallel.autotp_size"}) {
    is_known = is_known || path == known;
  }
  return is_known;
}

// Puts the options into the settings in force, and lists what the launcher
// gives but the configuration overrules.
void record_deepspeed(
    TrainingRequest& request,
    const DeepSpeedOptions& given,
    const DeepSpeedFields& found) {
  Settings& settings = request.settings;
  const DeepSpeedFields in_code{given};
  const std::string config = "DeepSpeed configuration";
  const auto record_field =
      [&](std::string_view key, auto member, std::string_view path) {
        // Code gives its window among the Accelerator's options.
        const bool is_window = path == "gradient_accumulation_steps";
        const auto code = or_nullopt_if_auto(in_code.*member);
        const auto value = or_nullopt_if_auto(found.*member);
        if (!settings.is_given(key) || (code && !is_window) || !value) {
          if (!is_window) record(settings, key, code, value);
          return;
        }
        const Resolved& launched = *settings.find(key);
        const OptionValue in_force = option_value(*value);
        if (launched.value == in_force) return;
        if (!path.empty()) {
          request.overruled.push_back(
              {std::string(key),
               format("the {} says {}", config, format_option(in_force)),
               launched.where});
        }
        settings.overrule(key, in_force, config);
      };
  visit_deepspeed_fields(record_field);
  if (const std::string& file = given.hf_ds_config; !file.empty()) {
    settings.overrule(
        "deepspeed_config_file",
        file.starts_with('{') ? "a JSON object" : file,
        "code");
  }
}

// Notes settings without effect, each with its origin: code, launcher, or else
// what `config` names.
class IgnoredFields {
 public:
  IgnoredFields(
      const Settings& settings,
      const std::string& config,
      std::vector<IgnoredSetting>& ignored)
      : settings_(settings), config_(config), ignored_(ignored) {}

  void note(
      bool is_in_code,
      std::string_view name,
      std::string_view key,
      std::string instead = {}) {
    const bool is_launched = !key.empty() && settings_.is_given(key);
    ignored_.push_back(
        {std::string(name),
         std::move(instead),
         is_in_code        ? "code"
             : is_launched ? settings_.find(key)->where
                           : config_,
         is_launched && !is_in_code ? std::string(key) : std::string()});
  }

 private:
  const Settings& settings_;
  const std::string& config_;
  std::vector<IgnoredSetting>& ignored_;
};

// Lists what is given for disks that are not in use.
void list_disk_fields(
    const DeepSpeedOptions& given,
    const DeepSpeedFields& found,
    IgnoredFields& ignored) {
  const auto note_path = [&](std::string_view name,
                             const std::optional<std::string>& device,
                             const std::optional<std::string>& in_code,
                             const std::optional<std::string>& path) {
    if (device == "nvme" || !path || path->empty() || *path == "none") return;
    ignored.note(in_code == path, name, name, "its device is not nvme");
  };
  note_path(
      "offload_optimizer_nvme_path",
      found.offload_optimizer_device,
      given.offload_optimizer_nvme_path,
      found.offload_optimizer_nvme_path);
  note_path(
      "offload_param_nvme_path",
      found.offload_param_device,
      given.offload_param_nvme_path,
      found.offload_param_nvme_path);
  const bool uses_disk = found.offload_optimizer_device == "nvme" ||
      found.offload_param_device == "nvme";
  if (given.offload_directory_in_memory && !uses_disk) {
    ignored.note(true, "offload_directory_in_memory", "", "nothing is on nvme");
  }
  if (given.step_in_backward && found.offload_optimizer_device != "nvme")
    ignored.note(true, "step_in_backward", "", "the optimizer is not on nvme");
}

// Lists the fields that only DeepSpeed itself acts on.
void list_ignored_fields(
    const DeepSpeedOptions& given,
    const DeepSpeedConfig& configuration,
    const Settings& settings,
    IgnoredFields ignored) {
  const DeepSpeedFields& found = configuration.options();
  if (*found.zero3_save_16bit_model) {
    ignored.note(
        false,
        "zero3_save_16bit_model",
        "zero3_save_16bit_model",
        "get_state_dict and save_model always use full weights");
  }
  const bool shards_as_made = given.zero3_init_flag
      ? *given.zero3_init_flag
      : settings.is_given("zero3_init_flag") &&
          settings.boolean("zero3_init_flag");
  if (shards_as_made && !*found.zero3_init_flag) {
    ignored.note(
        given.zero3_init_flag.has_value(),
        "zero3_init_flag",
        "zero3_init_flag",
        "only zero_stage 3 has it");
  }
  list_disk_fields(given, found, ignored);
  if (found.transformer_moe_cls_names && *found.zero_stage != 3) {
    ignored.note(
        given.transformer_moe_cls_names.has_value(),
        "transformer_moe_cls_names",
        "deepspeed_moe_layer_cls_names",
        "only zero_stage 3 gathers layers");
  }
  if (configuration.uses_msamp())
    ignored.note(false, "enable_msamp", "fp8_backend");
}

void list_ignored(
    const nlohmann::json& node,
    const std::string& path,
    const std::string& origin,
    const DeepSpeedConfig& config,
    std::vector<IgnoredSetting>& ignored) {
  for (const auto& [name, value] : node.items()) {
    const std::string below = dotted_name(path, name);
    // optimizer_from_deepspeed() and scheduler_from_deepspeed() read these.
    if (below == "optimizer" || below == "scheduler") continue;
    if (below == "msamp" && config.uses_msamp()) continue;
    if (value.is_object()) {
      list_ignored(value, below, origin, config, ignored);
    } else if (
        !is_known_key(below) && !is_read_for_disk(config.options(), below) &&
        value != "auto") {
      ignored.push_back({below, without_effect_on_disk(below), origin});
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

// Settings of files that DeepSpeed does not have.
void read_own_settings(
    DiskRequest& disk,
    const DeepSpeedOptions& given,
    const Settings& settings) {
  disk.may_be_in_memory = given.offload_directory_in_memory.value_or(
      settings.boolean("offload_directory_in_memory"));
  disk.steps_in_backward = disk.keeps_optimizer_state &&
      given.step_in_backward.value_or(settings.boolean("step_in_backward"));
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

// The configuration's precision if no other was requested; otherwise the two
// must agree.
std::string choose_precision(
    const DeepSpeedConfig& config,
    const RequestedPrecision& requested) {
  const std::optional<std::string> enabled = config.enabled_precision();
  if (requested.is_open) return enabled.value_or(std::string(requested.name));
  if (enabled && requested.name == "no") {
    throw ConfigError(format(
        "[config] mixed_precision is no, but the DeepSpeed configuration "
        "enables {}; change one of them, or leave mixed_precision out",
        *enabled));
  }
  const nlohmann::json* const own =
      config.find(format("{}.enabled", requested.name));
  if (requested.name != "no" && own != nullptr && *own == false) {
    throw ConfigError(format(
        "[config] mixed_precision is {}, but {}.enabled of the DeepSpeed "
        "configuration is false; change one of them, or write \"auto\"",
        requested.name,
        requested.name));
  }
  return std::string(requested.name);
}

// Number of tensor-parallel ranks that the configuration asks for; unset if
// none.
std::optional<int> autotp_size(const DeepSpeedConfig& config) {
  const nlohmann::json* const size = config.find("tensor_parallel.autotp_size");
  if (size == nullptr || size->is_null()) return std::nullopt;
  if (!size->is_number_integer() || *size < 0 ||
      *size > std::numeric_limits<int>::max()) {
    throw ConfigError(format(
        "[config] tensor_parallel.autotp_size of the DeepSpeed configuration "
        "is {}; give the number of ranks that split each layer",
        size->dump()));
  }
  const int ranks = size->get<int>();
  return ranks > 1 ? std::optional(ranks) : std::nullopt;
}

ShardingRequest read_sharding(
    const DeepSpeedOptions& given,
    const Settings& settings,
    const DeepSpeedConfig& config) {
  const DeepSpeedFields& found = config.options();
  const int stage = *found.zero_stage;
  ShardingRequest sharding;
  sharding.span = stage == 0 ? ShardSpan::none : ShardSpan::all;
  sharding.shard_parameters = stage == 3;
  sharding.reshard_after_forward = stage == 3;
  sharding.reduce_every_backward = stage >= 2;
  if (stage == 3 && found.transformer_moe_cls_names) {
    for (const std::string& name :
         split(*found.transformer_moe_cls_names, ',')) {
      if (const std::string_view trimmed = trim(name); !trimmed.empty())
        sharding.units.policy.leaf_class_names.emplace_back(trimmed);
    }
  }
  // Shards and their optimizer state are always on the same device.
  sharding.cpu_offload = found.offload_optimizer_device == "cpu" ||
      found.offload_param_device == "cpu";
  sharding.disk = read_disk_request(config);
  if (sharding.disk) read_own_settings(*sharding.disk, given, settings);
  sharding.make_on_rank_0 = stage == 3 && found.zero3_init_flag.value_or(false);
  return sharding;
}

}  // namespace

TrainingRequest read_deepspeed(
    const DeepSpeedOptions& given,
    const Settings& settings,
    const Environment& environment,
    const RequestedPrecision& precision) {
  DeepSpeedConfig config(given, settings, environment);
  const std::string mixed_precision = choose_precision(config, precision);
  config.set_mixed_precision(mixed_precision);
  // Accelerate's values for fields that it leaves open until prepare().
  config.fill_known(
      {{"gradient_clipping", 1.0},
       {"zero_optimization.stage3_gather_16bit_weights_on_model_save", false}});
  const DeepSpeedFields& found = config.options();

  TrainingRequest request;
  request.engine = Engine::deepspeed;
  request.settings = settings;
  record_deepspeed(request, given, found);
  request.precision.mixed_precision = mixed_precision;
  request.sharding = read_sharding(given, settings, config);
  if (mixed_precision != "no") {
    request.precision.sharded =
        sharded_precision(policy_named(mixed_precision, 1));
  }
  // 1 does not count as given, since it is also the value of a configuration
  // without the key.
  if (*found.gradient_accumulation_steps > 1) {
    request.step.gradient_accumulation_steps =
        found.gradient_accumulation_steps;
  }
  const nlohmann::json* const clipping = config.find("gradient_clipping");
  if (*found.gradient_clipping > 0) {
    request.step.gradient_clipping = found.gradient_clipping;
  } else if (clipping != nullptr && clipping->is_number() && *clipping > 0) {
    // The value comes from "auto", which is also the default without a
    // configuration.
    request.step.gradient_clipping = clipping->get<double>();
    request.step.clips_by_default = true;
  }
  request.degree(Axis::tensor) = autotp_size(config);
  request.infers_plan = request.degree(Axis::tensor).has_value();
  request.optimizer = section_of(config, "optimizer");
  request.scheduler = section_of(config, "scheduler");
  request.deepspeed = found;
  request.deepspeed_config = config.json().dump();
  const std::string origin = origin_of_config(given, settings);
  list_ignored_fields(
      given, config, settings, {settings, origin, request.ignored});
  list_ignored(config.json(), "", origin, config, request.ignored);
  return request;
}

}  // namespace accelerate::detail
