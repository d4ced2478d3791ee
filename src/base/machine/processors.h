#pragma once

#include <filesystem>

namespace accelerate::detail {

/// Number of processors that this process may keep busy: those in its affinity
/// mask, or fewer if its control group, or an ancestor, has a smaller share of
/// processor time; at least 1. `root` is where /proc and /sys are.
int usable_processors(const std::filesystem::path& root = "/");

}  // namespace accelerate::detail
