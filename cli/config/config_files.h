#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "config/files/config_document.h"

namespace accelerate::cli {

/// What `config default` writes: all devices of this machine, or the CPU.
/// Throws ConfigError for a precision that there is not.
detail::ConfigJson default_config(
    const std::string& mixed_precision,
    int num_devices);

/// False, and nothing done, if the file is there already.
bool write_default_config(
    const std::filesystem::path& path,
    const std::string& mixed_precision,
    int num_devices);

/// Fills in what newer versions know and takes out what they replaced; comments
/// and order stay. Throws ConfigError if the file is not there, or wrong.
void update_config(const std::filesystem::path& path);

/// From the keys of FSDP's first version to the second's. What was left out or
/// not done is said in `notes`.
struct Fsdp2Conversion {
  detail::ConfigJson values;
  std::vector<std::string> notes;
};
Fsdp2Conversion to_fsdp2(const detail::ConfigJson& values);

/// Converts a file: into `output`, or in place if `overwrite`. Returns the
/// notes. Throws ConfigError, and nothing is written, if the input is missing
/// or empty, or the output is there and `overwrite` was not given.
std::vector<std::string> convert_file_to_fsdp2(
    const std::filesystem::path& input,
    const std::optional<std::filesystem::path>& output,
    bool overwrite);

}  // namespace accelerate::cli
