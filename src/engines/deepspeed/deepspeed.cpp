#include "engines/deepspeed/deepspeed.h"

#include <cstdint>
#include <filesystem>
#include <limits>
#include <type_traits>
#include <utility>
#include <variant>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "base/text/json_text.h"
#include "base/text/text.h"

namespace accelerate::detail {

namespace {

using Json = nlohmann::json;

std::optional<std::string> decode_base64(std::string_view text) {
  std::string bytes;
  std::uint32_t bits = 0;
  int num_bits = 0;
  while (text.ends_with('=')) text.remove_suffix(1);
  for (const char c : text) {
    int digit = 0;
    if (c >= 'A' && c <= 'Z') {
      digit = c - 'A';
    } else if (c >= 'a' && c <= 'z') {
      digit = c - 'a' + 26;
    } else if (c >= '0' && c <= '9') {
      digit = c - '0' + 52;
    } else if (c == '-' || c == '+') {
      digit = 62;
    } else if (c == '_' || c == '/') {
      digit = 63;
    } else {
      return std::nullopt;
    }
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    num_bits += 6;
    if (num_bits < 8) continue;
    num_bits -= 8;
    bytes.push_back(static_cast<char>(bits >> num_bits & 0xFF));
  }
  return bytes;
}

Json read_configuration(const std::string& given) {
  std::error_code unreadable;
  // exists() fails for a string that is too long for a path; the error code
  // keeps it from throwing.
  const bool is_path = std::filesystem::exists(given, unreadable);
  const std::string text = is_path ? read_file(given) : given;
  ParsedJson parsed = parse_json(text);
  const std::string complaint = parsed.complaint;
  if (!complaint.empty() && !is_path) {
    if (const auto decoded = decode_base64(given)) {
      parsed = parse_json(*decoded);
    }
  }
  if (parsed.value.is_object()) return std::move(parsed.value);
  throw ConfigError(format(
      "[config] the DeepSpeed configuration must be the path of a JSON file, a "
      "JSON object or one in base64, but is {}\"{}\"{}{}",
      is_path ? "a file that is not a JSON object: " : "",
      printable(given),
      complaint.empty() ? "" : ": ",
      complaint));
}

// The one number whose default is not the option table's.
constexpr std::string_view kAccumulationSteps = "gradient_accumulation_steps";

template <class Value>
Json auto_or(const Value& value) {
  if constexpr (std::is_same_v<Value, int> || std::is_same_v<Value, double>) {
    if (value == kAuto) return "auto";
  }
  return value;
}

int accumulation_steps(const Json& value) {
  constexpr int kMost = std::numeric_limits<int>::max();
  // get() wraps numbers that do not fit an int, and truncates fractions.
  if (!value.is_number_integer() || value < 1 || value > kMost) {
    throw ConfigError(format(
        "[config] gradient_accumulation_steps of the DeepSpeed configuration "
        "is {}, but must be a whole number from 1 to {}, or \"auto\"",
        printable(value.dump(-1, ' ', false, Json::error_handler_t::replace)),
        kMost));
  }
  return value.get<int>();
}

// What the launcher's config file sets although it must come from DeepSpeed's
// configuration, if there is one.
std::vector<std::string> settings_beside_configuration(
    const Environment& environment) {
  std::vector<std::string> fields =
      split(environment.get("ACCELERATE_CONFIG_DS_FIELDS").value_or(""), ',');
  std::erase_if(fields, [](const std::string& field) {
    bool is_known = field == "mixed_precision";
    visit_deepspeed_fields(
        [&](std::string_view key, auto, std::string_view path) {
          is_known = is_known || (field == key && !path.empty());
        });
    return !is_known;
  });
  return fields;
}

std::string device_complaint(
    std::string_view field,
    const std::string& device) {
  return format(
      "[config] {} must be none, cpu or nvme, but is \"{}\"", field, device);
}

}  // namespace

DeepSpeedConfig::DeepSpeedConfig(
    const DeepSpeedOptions& given,
    const Settings& settings,
    const Environment& environment) {
  read_options(given, settings);
  if (options_.hf_ds_config.empty()) {
    compose();
    find_stage();
  } else {
    json_ = read_configuration(options_.hf_ds_config);
    if (!json_.contains("gradient_accumulation_steps"))
      json_["gradient_accumulation_steps"] = 1;
    if (!json_.contains("zero_optimization")) {
      throw ConfigError(
          "[config] the DeepSpeed configuration has no \"zero_optimization\"; "
          "add it, with at least {\"stage\": 0}");
    }
    const std::vector<std::string> duplicates =
        settings_beside_configuration(environment);
    if (!duplicates.empty()) {
      throw ConfigError(format(
          "[config] the launcher's config file sets {} beside a DeepSpeed "
          "configuration, where it would be ignored; set it in the DeepSpeed "
          "configuration and remove it from the config file",
          join(duplicates, ", ")));
    }
    merge();
  }
  add_msamp(settings);
  // DeepSpeed's own progress reports are off: trackers report instead.
  json_["steps_per_print"] = std::numeric_limits<double>::infinity();
  if (!options_.zero3_init_flag) {
    options_.zero3_init_flag = settings.is_given("zero3_init_flag")
        ? settings.boolean("zero3_init_flag")
        : stage_ == 3;
  }
  if (stage_ != 3) options_.zero3_init_flag = false;
}

void DeepSpeedConfig::read_options(
    const DeepSpeedOptions& given,
    const Settings& settings) {
  options_ = {given};
  visit_deepspeed_fields(
      [&](std::string_view key, auto member, std::string_view path) {
        auto& field = options_.*member;
        using Value = typename std::decay_t<decltype(field)>::value_type;
        if (field || path.empty()) return;
        if constexpr (std::is_same_v<Value, bool>) {
          field = settings.boolean(key);
        } else if constexpr (std::is_same_v<Value, double>) {
          field = settings.number(key).value_or(kAuto);
        } else if constexpr (std::is_same_v<Value, std::string>) {
          field = settings.text(key);
        } else {
          // The table's default is that of programs without DeepSpeed.
          const bool is_open =
              key == kAccumulationSteps && !settings.is_given(key);
          field = is_open ? kAuto : static_cast<int>(*settings.integer(key));
        }
      });
  if (!options_.transformer_moe_cls_names) {
    options_.transformer_moe_cls_names =
        settings.text("deepspeed_moe_layer_cls_names");
  }
  if (options_.hf_ds_config.empty()) {
    options_.hf_ds_config =
        settings.text("deepspeed_config_file").value_or("none");
  }
  if (options_.hf_ds_config == "none") options_.hf_ds_config.clear();

  std::vector<std::string> complaints;
  for (const auto& [field, device] :
       {std::pair(
            "offload_optimizer_device", *options_.offload_optimizer_device),
        std::pair("offload_param_device", *options_.offload_param_device)}) {
    if (device != "none" && device != "cpu" && device != "nvme")
      complaints.push_back(device_complaint(field, device));
  }
  if (*options_.zero_stage < 0 || *options_.zero_stage > 3) {
    complaints.push_back(format(
        "[config] zero_stage must be 0, 1, 2 or 3, but is {}",
        *options_.zero_stage));
  }
  if (!complaints.empty()) throw ConfigError(join(complaints, "\n"));
}

// The options' values replace "auto"; then the configuration's values replace
// the options'.
void DeepSpeedConfig::merge() {
  Json values = Json::object();
  visit_deepspeed_fields(
      [&](std::string_view, auto member, std::string_view path) {
        if (!path.empty())
          values[std::string(path)] = auto_or(*(options_.*member));
      });
  fill_known(values);
  find_stage();
  try {
    visit_deepspeed_fields(
        [&](std::string_view key, auto member, std::string_view path) {
          const Json* const value = path.empty() ? nullptr : find(path);
          if (value == nullptr || value->is_null() || *value == "auto") return;
          auto& field = options_.*member;
          using Value = typename std::decay_t<decltype(field)>::value_type;
          if constexpr (std::is_same_v<Value, int>) {
            if (key == kAccumulationSteps) {
              field = accumulation_steps(*value);
              return;
            }
          }
          field = value->template get<Value>();
        });
  } catch (const Json::exception& error) {
    throw ConfigError(format(
        "[config] a value of the DeepSpeed configuration "
        "has the wrong type: {}",
        json_complaint(error)));
  }
}

void DeepSpeedConfig::compose() {
  json_ = {
      {"train_batch_size", "auto"}, {"train_micro_batch_size_per_gpu", "auto"}};
  visit_deepspeed_fields(
      [&](std::string_view, auto member, std::string_view path) {
        if (path.empty()) return;
        const std::string pointer = "/" + join(split(path, '.'), "/");
        json_[Json::json_pointer(pointer)] = auto_or(*(options_.*member));
      });
  for (const char* const what : {"offload_optimizer", "offload_param"}) {
    Json& offload = json_["zero_optimization"][what];
    if (offload["device"] != "nvme") offload["nvme_path"] = nullptr;
  }
  if (*options_.gradient_clipping == 0) json_.erase("gradient_clipping");
}

void DeepSpeedConfig::add_msamp(const Settings& settings) {
  // Other values are for a recipe's reader, so looking does not count as
  // reading.
  const Resolved* const backend = settings.find("fp8_backend");
  uses_msamp_ =
      backend != nullptr && backend->value == OptionValue(std::string("msamp"));
  if (!uses_msamp_) return;
  settings.mark_read("fp8_backend");
  // The configuration's own section stays as it is.
  if (json_.contains("msamp")) return;
  if (*options_.zero_stage == 3) {
    throw ConfigError(
        "[config] enable_msamp does not go together with zero_stage 3; use "
        "stage 0, 1 or 2");
  }
  json_["msamp"] = {{"enabled", true}, {"opt_level", "O1"}};
  if (settings.is_given("fp8_opt_level"))
    json_["msamp"]["opt_level"] =
        std::get<std::string>(settings.find("fp8_opt_level")->value);
}

void DeepSpeedConfig::find_stage() {
  const Json* const stage = find("zero_optimization.stage");
  const bool is_stage = stage == nullptr ||
      (stage->is_number_integer() && *stage >= 0 && *stage <= 3);
  if (!is_stage) {
    throw ConfigError(format(
        "[config] zero_optimization.stage of the DeepSpeed configuration must "
        "be 0, 1, 2 or 3, but is {}",
        printable(stage->dump())));
  }
  stage_ = stage == nullptr ? -1 : stage->get<int>();
}

}  // namespace accelerate::detail
