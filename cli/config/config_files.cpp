#include "cli/config/config_files.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "base/text/text.h"

namespace accelerate::cli {

namespace {

using detail::ConfigDocument;
using detail::ConfigJson;
using detail::format;

constexpr std::array<std::string_view, 3> kRemoved{
    "fsdp_backward_prefetch",
    "fsdp_sync_module_states",
    "fsdp_use_orig_params"};

ConfigJson reshard_after_forward(const ConfigJson& strategy) {
  if (strategy == "FULL_SHARD" || strategy == "HYBRID_SHARD") return true;
  if (strategy == "SHARD_GRAD_OP" || strategy == "HYBRID_SHARD_ZERO2" ||
      strategy == "NO_SHARD") {
    return false;
  }
  return strategy;
}

}  // namespace

void update_config(const std::filesystem::path& path) {
  const ConfigDocument document = detail::read_config_document(path);
  const ConfigJson values =
      detail::values_to_write(detail::values_in_force(document));
  detail::replace_file(path, detail::updated_text(document, values));
}

Fsdp2Conversion to_fsdp2(const ConfigJson& values) {
  Fsdp2Conversion out{values, {}};
  const ConfigJson old = values.value("fsdp_config", ConfigJson::object());
  if (!old.is_object() || old.empty()) {
    out.notes.emplace_back("the file has no fsdp_config: nothing to convert");
    return out;
  }
  if (old.value("fsdp_version", ConfigJson(1)) == 2) {
    out.notes.emplace_back(
        "fsdp_version is already 2: nothing was converted; if the keys are of "
        "version 1, set it to 1 and run this again");
    return out;
  }
  ConfigJson converted = ConfigJson::object();
  for (const auto& [key, value] : old.items()) {
    if (key == "fsdp_sharding_strategy" ||
        key == "fsdp_reshard_after_forward") {
      converted["fsdp_reshard_after_forward"] = reshard_after_forward(value);
    } else if (std::ranges::find(kRemoved, key) != kRemoved.end()) {
      out.notes.push_back(
          format("{} is left out: version 2 does not have this setting", key));
    } else if (key == "fsdp_forward_prefetch") {
      out.notes.push_back(
          format("{} is left out: version 2 does not have it yet", key));
    } else {
      converted[key] = value;
    }
  }
  converted["fsdp_version"] = 2;
  out.values["fsdp_config"] = std::move(converted);
  return out;
}

std::vector<std::string> convert_file_to_fsdp2(
    const std::filesystem::path& input,
    const std::optional<std::filesystem::path>& output,
    bool overwrite) {
  const ConfigDocument document = detail::read_config_document(input);
  if (!overwrite && !output) {
    throw ConfigError(
        "[config] no output was named; pass --output_file FILE, or --overwrite "
        "to replace the input");
  }
  const std::filesystem::path target = output.value_or(input);
  std::error_code ignored;  // writing reports what is wrong
  if (!overwrite && std::filesystem::exists(target, ignored)) {
    throw ConfigError(format(
        "[config] {} already exists; pass another --output_file, or "
        "--overwrite",
        target));
  }
  if (document.values.empty()) {
    throw ConfigError(format("[config] {} holds no settings", input));
  }
  Fsdp2Conversion conversion = to_fsdp2(document.values);
  detail::replace_file(
      target, detail::updated_text(document, conversion.values));
  return std::move(conversion.notes);
}

}  // namespace accelerate::cli
