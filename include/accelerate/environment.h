#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include <accelerate/export.h>

namespace accelerate {

/// Changes environment variables; the destructor restores their previous
/// values, also when an exception ends the scope.
///
/// The environment belongs to the whole process, and changing it is not safe
/// while another thread reads it: open and close such scopes before threads
/// exist (workers of loaders, LibTorch's pools, ranks as threads). Scopes must
/// end in reverse order.
class ACCELERATE_API EnvironmentScope {
 public:
  /// The destructor restores `previous`; a variable without a value was not
  /// set. With `clears`, it also removes every other variable.
  EnvironmentScope(
      std::map<std::string, std::optional<std::string>> previous,
      bool clears);
  EnvironmentScope(const EnvironmentScope&) = delete;
  EnvironmentScope& operator=(const EnvironmentScope&) = delete;
  ~EnvironmentScope();

 private:
  std::map<std::string, std::optional<std::string>> previous_;
  bool clears_;
};

/// Sets environment variables while the returned scope lives. Names are
/// converted to upper case, as in Accelerate. Throws ConfigError, having set
/// nothing, for a name that is empty or contains "=".
///
///     const auto scope = patch_environment({{"omp_num_threads", "1"}});
[[nodiscard]] ACCELERATE_API EnvironmentScope
patch_environment(const std::map<std::string, std::string>& variables);

/// Removes all environment variables while the returned scope lives.
[[nodiscard]] ACCELERATE_API EnvironmentScope clear_environment();

struct BasicConfigOptions {
  /// no, fp16, bf16 or fp8.
  std::string mixed_precision = "no";
  /// The file; empty: the one that `accelerate-cpp launch` reads by default.
  std::filesystem::path save_location = {};
  /// Number of processes, one per device; 0: this machine trains on its CPU.
  /// Unset: as many as LibTorch finds.
  std::optional<int> num_devices = std::nullopt;
};

/// Writes a config file for the launcher, for all devices of this machine, as
/// `accelerate-cpp config default` does: YAML, or JSON if the name ends in
/// .json. Returns the path, or nothing if the file already exists, which is
/// then left as it is. Throws ConfigError for an unknown precision, and if
/// neither `save_location` nor a home directory is known; Error if the file
/// cannot be written.
ACCELERATE_API std::optional<std::filesystem::path> write_basic_config(
    const BasicConfigOptions& options = {});

}  // namespace accelerate
