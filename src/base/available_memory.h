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

}  // namespace accelerate::detail
