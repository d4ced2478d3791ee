#pragma once

#include <filesystem>
#include <optional>

#include "config/environment.h"

namespace accelerate::detail {

/// The directory for what can be made again: `accelerate_cpp` below
/// XDG_CACHE_HOME, else below HOME's `.cache`. Nothing if neither variable is
/// set to an absolute path.
std::optional<std::filesystem::path> cache_directory(
    const Environment& environment);

}  // namespace accelerate::detail
