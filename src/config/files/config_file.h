#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "config/environment.h"
#include "config/files/config_document.h"
#include "config/settings.h"

namespace accelerate::detail {

/// The path of Accelerate's config file: below HF_HOME, else XDG_CACHE_HOME,
/// else HOME. Nothing if none of them is set.
std::optional<std::filesystem::path> default_config_path(
    const Environment& environment);

/// What is found at that path.
struct DefaultConfig {
  /// Empty if no variable names a directory.
  std::filesystem::path path;
  bool exists = false;
  /// Why the file, or the directory it would be in, cannot be read; empty if it
  /// can be read or does not exist.
  std::string problem;
};
DefaultConfig find_default_config(const Environment& environment);

/// The settings in the file. Throws one ConfigError with every unknown key and
/// the nearest known one, also for a SageMaker job's file.
Source source_from_config(const ConfigDocument& document);

/// The values that `config default` writes: all devices of this machine, or the
/// CPU. Throws ConfigError for an unknown precision.
ConfigJson default_config(const std::string& mixed_precision, int num_devices);

/// Writes default_config() to a file. Returns false and changes nothing if the
/// file exists.
bool write_default_config(
    const std::filesystem::path& path,
    const std::string& mixed_precision,
    int num_devices);

}  // namespace accelerate::detail
