#include "adapters/adapter_config.h"

#include <cmath>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "base/text/json_text.h"
#include "base/text/text.h"

namespace accelerate {

namespace detail {

namespace {

using nlohmann::json;

/// A setting of PEFT with a single supported value, which is also written.
struct FixedSetting {
  const char* name;
  /// The value as JSON.
  const char* value;
};

// Settings of PEFT 0.21 that change what an adapter computes or which kind it
// is, with the value that matches what this library computes.
constexpr FixedSetting kUnsupported[] = {
    {"alora_invocation_tokens", "null"},
    {"arrow_config", "null"},
    {"kasa_config", "null"},
    {"layer_replication", "null"},
    {"lora_bias", "false"},
    {"megatron_config", "null"},
    {"monteclora_config", "null"},
    {"target_parameters", "null"},
    {"trainable_token_indices", "null"},
    {"use_bdlora", "null"},
    {"use_qalora", "false"},
    {"velora_config", "null"}};

// Settings that do not affect a saved adapter.
constexpr FixedSetting kIgnored[] = {
    {"auto_mapping", "null"},
    {"corda_config", "null"},
    {"ensure_weight_tying", "false"},
    {"eva_config", "null"},
    {"loftq_config", "{}"},
    {"lora_ga_config", "null"},
    {"megatron_core", "\"megatron.core\""},
    {"peft_version", "\"0.21.2\""},
    {"qalora_group_size", "16"},
    {"revision", "null"}};

json as_json(const ModulePattern& pattern) {
  if (!pattern.expression().empty()) return pattern.expression();
  if (pattern.names().empty()) return nullptr;
  return pattern.names();
}

json text_or_null(const std::string& text) {
  return text.empty() ? json(nullptr) : json(text);
}

// A whole number as PEFT writes it.
json number(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e15)
    return static_cast<std::int64_t>(value);
  return value;
}

template <class List>
json list_or_null(const List& values) {
  return values.empty() ? json(nullptr) : json(values);
}

std::string bias_name(AdapterBias bias) {
  switch (bias) {
    case AdapterBias::all:
      return "all";
    case AdapterBias::lora_only:
      return "lora_only";
    default:
      return "none";
  }
}

json init_value(AdapterInit init) {
  if (init == AdapterInit::gaussian) return "gaussian";
  return init == AdapterInit::standard;
}

/// Reads the fields of a configuration.
class ConfigReader {
 public:
  ConfigReader(const json& config, const std::filesystem::path& path)
      : config_(config), path_(path) {}

  // Null if the field is missing.
  [[nodiscard]] const json& field(const char* name) const {
    static const json null;
    const auto found = config_.find(name);
    return found == config_.end() ? null : *found;
  }
  template <class Value>
  void read(const char* name, Value& value) const {
    if (field(name).is_null()) return;
    try {
      value = field(name).get<Value>();
    } catch (const json::exception&) {
      fail(name, "another type");
    }
  }
  void read(const char* name, ModulePattern& pattern) const {
    if (field(name).is_null()) return;
    if (field(name).is_string()) {
      pattern = ModulePattern(field(name).get<std::string>());
      return;
    }
    std::vector<std::string> names;
    read(name, names);
    pattern = ModulePattern(std::move(names));
  }
  // Reads a list or a single value.
  template <class Value>
  void read_list(const char* name, std::vector<Value>& values) const {
    if (field(name).is_null() || field(name).is_array())
      return read(name, values);
    Value value{};
    read(name, value);
    values = {std::move(value)};
  }
  [[noreturn]] void fail(const char* name, std::string_view found) const {
    throw CheckpointError(format(
        "[adapters] {} cannot be read: \"{}\" must be what "
        "PEFT writes, but is {}",
        path_.string(),
        name,
        found));
  }
  void require_supported(const char* name, const json& value) const {
    if (field(name).is_null() || field(name) == value) return;
    throw ConfigError(format(
        "[adapters] {} is not supported: \"{}\" must be {}, but is {}",
        path_.string(),
        name,
        value.dump(),
        printable(field(name).dump())));
  }

 private:
  const json& config_;
  const std::filesystem::path& path_;
};

void read_init(const ConfigReader& reader, AdapterOptions& options) {
  const json& init = reader.field("init_lora_weights");
  if (init.is_null()) return;
  if (init.is_boolean()) {
    options.init =
        init.get<bool>() ? AdapterInit::standard : AdapterInit::random;
    return;
  }
  // The other values also change the model's weights.
  if (init != "gaussian" && init != "eva" && init != "orthogonal")
    reader.require_supported("init_lora_weights", true);
  if (init == "gaussian") options.init = AdapterInit::gaussian;
}

void read_bias(const ConfigReader& reader, AdapterOptions& options) {
  std::string bias = "none";
  reader.read("bias", bias);
  if (bias == "none") return;
  if (bias != "all" && bias != "lora_only")
    reader.fail("bias", "\"" + printable(bias) + "\"");
  options.bias = bias == "all" ? AdapterBias::all : AdapterBias::lora_only;
}

}  // namespace

std::string config_text(const AdapterOptions& options) {
  json config = {
      {"alpha_pattern", json::object()},
      {"base_model_name_or_path",
       text_or_null(options.base_model_name_or_path)},
      {"bias", bias_name(options.bias)},
      {"exclude_modules", as_json(options.exclude_modules)},
      {"fan_in_fan_out", options.fan_in_fan_out},
      {"inference_mode", true},
      {"init_lora_weights", init_value(options.init)},
      {"layers_pattern", list_or_null(options.layers_pattern)},
      {"layers_to_transform", list_or_null(options.layers_to_transform)},
      {"lora_alpha", number(options.alpha)},
      {"lora_dropout", options.dropout},
      {"modules_to_save", list_or_null(options.modules_to_save)},
      {"peft_type", "LORA"},
      {"r", options.rank},
      {"rank_pattern", json(options.rank_pattern)},
      {"target_modules", as_json(options.target_modules)},
      {"task_type", text_or_null(options.task_type)},
      {"use_dora", options.use_dora},
      {"use_rslora", options.use_rslora}};
  if (options.rank_pattern.empty()) config["rank_pattern"] = json::object();
  for (const auto& [pattern, alpha] : options.alpha_pattern)
    config["alpha_pattern"][pattern] = number(alpha);
  for (const FixedSetting& each : kUnsupported)
    config[each.name] = json::parse(each.value);
  for (const FixedSetting& each : kIgnored)
    config[each.name] = json::parse(each.value);
  return config.dump(2);
}

AdapterOptions parse_config(
    const std::string& text,
    const std::filesystem::path& path) {
  const ParsedJson parsed = parse_json(text);
  if (!parsed.complaint.empty() || !parsed.value.is_object()) {
    throw CheckpointError(format(
        "[adapters] {} cannot be read: {}",
        path.string(),
        parsed.complaint.empty() ? "it must be an object" : parsed.complaint));
  }
  const ConfigReader reader(parsed.value, path);
  if (reader.field("peft_type").is_null()) reader.fail("peft_type", "missing");
  reader.require_supported("peft_type", "LORA");
  for (const FixedSetting& each : kUnsupported)
    reader.require_supported(each.name, json::parse(each.value));
  AdapterOptions options;
  reader.read("r", options.rank);
  reader.read("lora_alpha", options.alpha);
  reader.read("target_modules", options.target_modules);
  reader.read("exclude_modules", options.exclude_modules);
  reader.read("lora_dropout", options.dropout);
  read_bias(reader, options);
  reader.read("use_rslora", options.use_rslora);
  reader.read("use_dora", options.use_dora);
  reader.read_list("modules_to_save", options.modules_to_save);
  reader.read("fan_in_fan_out", options.fan_in_fan_out);
  read_init(reader, options);
  reader.read_list("layers_to_transform", options.layers_to_transform);
  reader.read_list("layers_pattern", options.layers_pattern);
  reader.read("rank_pattern", options.rank_pattern);
  reader.read("alpha_pattern", options.alpha_pattern);
  reader.read("task_type", options.task_type);
  reader.read("base_model_name_or_path", options.base_model_name_or_path);
  return options;
}

}  // namespace detail

AdapterOptions read_adapter_options(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / detail::kAdapterConfigName;
  return detail::parse_config(detail::read_file(path), path);
}

}  // namespace accelerate
