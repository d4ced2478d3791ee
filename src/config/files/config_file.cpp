#include "config/files/config_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "base/text/text.h"

namespace accelerate::detail {

namespace {

class Reader {
 public:
  explicit Reader(const ConfigDocument& document) : document_(document) {}

  Source read(const ConfigJson& values) {
    for (const auto& [key, value] : values.items()) {
      if (value.is_object()) {
        for (const auto& [inner, entry] : value.items()) {
          take(
              with_prefix(key, inner), key, format("{}.{}", key, inner), entry);
        }
      } else if (document_.values.contains(key) || is_replaced(key)) {
        // Other keys are defaults.
        take(key, "", key, value);
      }
    }
    if (values.value("distributed_type", "") == "NO" &&
        !document_.values.contains("num_processes")) {
      add(*find_option("num_processes"), "num_processes", 1);
    }
    unknown_.finish();
    if (!complaints_.empty()) throw ConfigError(join(complaints_, "\n"));
    return std::move(source_);
  }

 private:
  [[nodiscard]] bool is_replaced(const std::string& key) const {
    return key == "mixed_precision" && document_.values.contains("fp16");
  }

  // fsdp_config: {version: 2} means fsdp_version.
  static std::string with_prefix(
      const std::string& section,
      const std::string& key) {
    for (const std::string_view family : {"fsdp", "fp8", "dynamo"}) {
      if (section == format("{}_config", family) &&
          !key.starts_with(format("{}_", family))) {
        return format("{}_{}", family, key);
      }
    }
    return key;
  }

  void take(
      std::string key,
      const std::string& section,
      const std::string& name,
      const ConfigJson& value) {
    // Accelerate's documentation uses this name.
    if (key == "fsdp_backward_prefetch_policy") key = "fsdp_backward_prefetch";
    const OptionSpec* const spec = find_option(key);
    // DeepSpeed's map also holds general keys.
    const bool fits = spec != nullptr &&
        (spec->section == section ||
         (section == "deepspeed_config" && spec->section.empty()));
    if (!fits) {
      std::vector<std::string> known;
      for (const OptionSpec& row : option_table()) {
        if (row.section == section) known.emplace_back(row.key);
      }
      unknown_.add(name, key, known);
      return;
    }
    // Accelerate writes -1 to leave the number to the command line, and [] for
    // a list that the user did not set.
    const bool is_unset = value.is_null() ||
        (value.is_array() && value.empty()) ||
        (key == "num_processes" && value.is_number() && value == -1);
    if (!is_unset) add(*spec, name, value);
  }

  void add(
      const OptionSpec& spec,
      const std::string& name,
      const ConfigJson& value) {
    // YAML reads an unquoted NO as a boolean; choices are strings.
    const auto scalar = document_.scalars.find(name);
    const bool use_scalar = spec.kind == OptionKind::choice &&
        scalar != document_.scalars.end() && !value.is_string();
    source_.add(
        spec.key,
        use_scalar ? scalar->second : python_text(value),
        place_of(document_, name));
  }

  const ConfigDocument& document_;
  Source source_{Origin::file, {}};
  std::vector<std::string> complaints_;
  UnknownKeys unknown_{document_, complaints_};
};

}  // namespace

std::optional<std::filesystem::path> default_config_path(
    const Environment& environment) {
  std::filesystem::path directory;
  if (const auto home = environment.get("HF_HOME")) {
    directory = *home;
  } else if (const auto cache = environment.get("XDG_CACHE_HOME")) {
    directory = std::filesystem::path(*cache) / "huggingface";
  } else if (const auto user = environment.get("HOME")) {
    directory = std::filesystem::path(*user) / ".cache" / "huggingface";
  } else {
    return std::nullopt;
  }
  return directory / "accelerate" / "default_config.yaml";
}

DefaultConfig find_default_config(const Environment& environment) {
  DefaultConfig found;
  const auto path = default_config_path(environment);
  if (!path) return found;
  found.path = *path;
  std::error_code problem;
  found.exists = std::filesystem::exists(*path, problem);
  if (problem) {
    found.problem = problem.message();
  } else if (found.exists && access(path->c_str(), R_OK) != 0) {
    found.problem = std::strerror(errno);
  }
  return found;
}

Source source_from_config(const ConfigDocument& document) {
  if (document.values.empty()) return {Origin::file, {}};
  const ConfigJson values = values_in_force(document);
  if (values["compute_environment"] == "AMAZON_SAGEMAKER") {
    throw ConfigError(format(
        "[config] {} describes a job for Amazon SageMaker, which only Amazon's "
        "Python SDK starts; give a file with compute_environment: "
        "LOCAL_MACHINE by --config_file",
        document.path));
  }
  return Reader(document).read(values);
}

ConfigJson default_config(const std::string& mixed_precision, int num_devices) {
  const std::string precision = to_lower(mixed_precision);
  const std::vector<std::string> known{"no", "fp16", "bf16", "fp8"};
  if (std::ranges::find(known, precision) == known.end()) {
    throw ConfigError(format(
        "[config] mixed_precision is \"{}\", but must be one of {}",
        mixed_precision,
        join(known, ", ")));
  }
  return {
      {"compute_environment", "LOCAL_MACHINE"},
      {"debug", false},
      {"distributed_type", num_devices > 1 ? "MULTI_GPU" : "NO"},
      {"downcast_bf16", false},
      {"enable_cpu_affinity", false},
      {"machine_rank", 0},
      {"main_training_function", "main"},
      {"mixed_precision", precision},
      {"num_machines", 1},
      {"num_processes", std::max(num_devices, 1)},
      {"rdzv_backend", "static"},
      {"same_network", false},
      {"tpu_use_cluster", false},
      {"tpu_use_sudo", false},
      {"use_cpu", num_devices == 0}};
}

bool write_default_config(
    const std::filesystem::path& path,
    const std::string& mixed_precision,
    int num_devices) {
  const ConfigJson values = default_config(mixed_precision, num_devices);
  std::error_code problem;
  if (std::filesystem::exists(path, problem)) return false;
  if (problem) {
    throw ConfigError(format(
        "[config] {} cannot be written: {}; pass --config_file, or set HF_HOME "
        "to a writable directory",
        path.string(),
        problem.message()));
  }
  replace_file(path, write_config(values, path.extension() == ".json"));
  return true;
}

}  // namespace accelerate::detail
