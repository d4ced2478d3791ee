#pragma once

#include <filesystem>
#include <string>

#include "config/files/config_document.h"

namespace accelerate::detail {

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
