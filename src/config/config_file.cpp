#include "config/config_file.h"

#include <algorithm>

#include <yaml-cpp/yaml.h>

#include <accelerate/error.h>

#include "base/files.h"
#include "base/text.h"

namespace accelerate::detail {

namespace {

bool has_effect_elsewhere_only(std::string_view key) {
  const auto keys = keys_without_effect();
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

std::vector<std::string> known_keys() {
  std::vector<std::string> keys;
  for (const OptionSpec& spec : option_table()) keys.emplace_back(spec.key);
  for (const std::string_view key : keys_without_effect())
    keys.emplace_back(key);
  return keys;
}

class Reader {
 public:
  explicit Reader(const std::filesystem::path& path)
      : where_(concat("file ", path.string())) {}

  void read_map(const YAML::Node& map, const std::string& section) {
    for (const auto& entry : map) {
      const std::string key = entry.first.as<std::string>();
      if (entry.second.IsMap() && key == "parallelism_config") {
        read_map(entry.second, key);
      } else {
        read_entry(key, section, entry.second);
      }
    }
  }

  ConfigFile finish() {
    if (!complaints_.empty()) throw ConfigError(join(complaints_, "\n"));
    return std::move(file_);
  }

 private:
  void read_entry(
      const std::string& key,
      const std::string& section,
      const YAML::Node& value) {
    const OptionSpec* const spec = find_option(key);
    if (spec == nullptr || spec->section != section) {
      if (has_effect_elsewhere_only(key)) {
        if (!is_neutral(key, value)) file_.without_effect.push_back(key);
        return;
      }
      complain_unknown(key);
      return;
    }
    if (value.IsNull()) return;
    if (!value.IsScalar()) {
      complaints_.push_back(concat(
          "[config] ",
          key,
          " must be a single value (",
          where_,
          ", line ",
          value.Mark().line + 1,
          ")"));
      return;
    }
    file_.source.add(key, value.Scalar(), where_);
  }

  // Values that Accelerate's questionnaire writes when nothing special was
  // asked for deserve no warning.
  static bool is_neutral(const std::string& key, const YAML::Node& value) {
    if (value.IsNull() || key == "compute_environment" ||
        key == "distributed_type" || key == "main_training_function") {
      return true;
    }
    if (value.IsMap() || value.IsSequence()) return value.size() == 0;
    const std::string text = to_lower(value.Scalar());
    if (key == "num_machines") return text == "1";
    if (key == "machine_rank") return text == "0";
    if (key == "gpu_ids") return text == "all";
    if (key == "rdzv_backend") return text == "static";
    if (key == "same_network") return true;
    return text.empty() || text == "no" || text == "false" || text == "none";
  }

  void complain_unknown(const std::string& key) {
    std::string text =
        concat("[config] unknown key \"", key, "\" (", where_, ")");
    if (const auto meant = nearest(key, known_keys())) {
      text += concat("; did you mean \"", *meant, "\"?");
    }
    complaints_.push_back(std::move(text));
  }

  std::string where_;
  ConfigFile file_{Source{Origin::file, {}}, {}};
  std::vector<std::string> complaints_;
};

}  // namespace

std::optional<std::filesystem::path> default_config_path(
    const Environment& environment) {
  std::filesystem::path folder;
  if (const auto home = environment.get("HF_HOME")) {
    folder = *home;
  } else if (const auto cache = environment.get("XDG_CACHE_HOME")) {
    folder = std::filesystem::path(*cache) / "huggingface";
  } else if (const auto user = environment.get("HOME")) {
    folder = std::filesystem::path(*user) / ".cache" / "huggingface";
  } else {
    return std::nullopt;
  }
  return folder / "accelerate" / "default_config.yaml";
}

ConfigFile read_config_file(const std::filesystem::path& path) {
  std::error_code code;
  if (!std::filesystem::exists(path, code)) {
    throw ConfigError(concat(
        "[config] there is no config file ",
        path,
        "; give the path of one, or leave --config_file out"));
  }
  YAML::Node root;
  try {
    root = YAML::Load(read_file(path));
  } catch (const YAML::Exception& error) {
    throw ConfigError(concat(
        "[config] file ", path.string(), " does not parse: ", error.what()));
  }
  if (root.IsNull()) return {Source{Origin::file, {}}, {}};
  if (!root.IsMap()) {
    throw ConfigError(concat(
        "[config] file ",
        path.string(),
        " must hold keys and values, one \"key: value\" a line"));
  }
  Reader reader(path);
  reader.read_map(root, "");
  return reader.finish();
}

}  // namespace accelerate::detail
