#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace accelerate::detail {

/// Bytes of RAM that programs can still use without swapping, within the limits
/// of the process's control group and its ancestors. Nothing if the system does
/// not report it. `root` is where /proc and /sys are.
std::optional<std::uint64_t> available_memory(
    const std::filesystem::path& root = "/");

/// Bytes that this process can still write to the file system of a file or
/// directory, which need not exist yet. Nothing if the system does not report
/// it.
std::optional<std::uint64_t> free_disk_space(const std::filesystem::path& path);

}  // namespace accelerate::detail
