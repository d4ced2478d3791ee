#pragma once

#include <filesystem>
#include <optional>

#include "config/environment.h"
#include "config/files/config_document.h"
#include "config/settings.h"

namespace accelerate::detail {

/// The path of Accelerate's config file: below HF_HOME, else XDG_CACHE_HOME,
/// else HOME. Nothing if none of them is set.
std::optional<std::filesystem::path> default_config_path(
    const Environment& environment);

/// The settings of the file. Throws one ConfigError with every unknown key and
/// the nearest known one, and for a file of a SageMaker job.
Source source_from_config(const ConfigDocument& document);

}  // namespace accelerate::detail
