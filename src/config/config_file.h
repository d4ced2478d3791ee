#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "config/environment.h"
#include "config/settings.h"

namespace accelerate::detail {

/// Where Accelerate keeps its config file: below HF_HOME, else XDG_CACHE_HOME,
/// else HOME. Nothing if none of them is set.
std::optional<std::filesystem::path> default_config_path(
    const Environment& environment);

struct ConfigFile {
  Source source;
  /// Keys that are set but have no effect in this version.
  std::vector<std::string> without_effect;
};

/// Reads a YAML or JSON config file. Throws ConfigError with every unknown key
/// and the nearest known one, and for text that does not parse, with the line.
ConfigFile read_config_file(const std::filesystem::path& path);

}  // namespace accelerate::detail
