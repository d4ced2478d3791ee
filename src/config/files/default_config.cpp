#include "config/files/default_config.h"

#include <algorithm>
#include <vector>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "base/text/text.h"

namespace accelerate::detail {

ConfigJson default_config(const std::string& mixed_precision, int num_devices) {
  const std::string precision = to_lower(mixed_precision);
  const std::vector<std::string> known{"no", "fp16", "bf16", "fp8"};
  if (std::find(known.begin(), known.end(), precision) == known.end()) {
    throw ConfigError(format(
        "[config] mixed_precision is \"{}\"; it must be one of {}",
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
        "[config] {} cannot be written: {}; give --config_file, or set HF_HOME "
        "to a directory that can be",
        path.string(),
        problem.message()));
  }
  replace_file(path, write_config(values, path.extension() == ".json"));
  return true;
}

}  // namespace accelerate::detail
