#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "config/files/config_document.h"

namespace accelerate::cli {

/// Adds keys from newer versions and replaces old ones, keeping comments and
/// order. Throws ConfigError if the file does not exist or is invalid.
void update_config(const std::filesystem::path& path);

/// A file converted from FSDP version 1 to version 2. `notes` lists what was
/// left out.
struct Fsdp2Conversion {
  detail::ConfigJson values;
  std::vector<std::string> notes;
};
Fsdp2Conversion to_fsdp2(const detail::ConfigJson& values);

/// Converts a file: into `output`, or in place if `overwrite`. Returns the
/// notes. Throws ConfigError, and writes nothing, if the input does not exist
/// or is empty, or if the output exists and `overwrite` was not given.
std::vector<std::string> convert_file_to_fsdp2(
    const std::filesystem::path& input,
    const std::optional<std::filesystem::path>& output,
    bool overwrite);

}  // namespace accelerate::cli
