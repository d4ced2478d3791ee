#pragma once

#include <filesystem>

namespace accelerate::detail {

/// Whether files at `path`, which exists, are kept in memory (tmpfs, ramfs), so
/// that writing one frees none. False where the system does not tell.
bool is_in_memory(const std::filesystem::path& path);

}  // namespace accelerate::detail
