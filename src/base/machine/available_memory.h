#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace accelerate::detail {

/// Bytes of RAM that programs can still take without swapping, within the limit
/// of the process's control group and of those around it. Nothing if the system
/// does not say. `root` is where /proc and /sys are.
std::optional<std::uint64_t> available_memory(
    const std::filesystem::path& root = "/");

/// Bytes that this process can still write to the file system of a file or
/// directory, which need not exist yet. Nothing if the system does not say.
std::optional<std::uint64_t> free_disk_space(const std::filesystem::path& path);

}  // namespace accelerate::detail
