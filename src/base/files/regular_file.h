#pragma once

#include <filesystem>

namespace accelerate::detail {

/// Throws Error, naming what the file is, unless it is a regular file or does
/// not exist. Does not open it: closing any descriptor of a file ends the locks
/// (fcntl(2)) that the process has on it.
void require_regular_or_missing(
    const std::filesystem::path& path,
    bool refuses_links = false);

}  // namespace accelerate::detail
