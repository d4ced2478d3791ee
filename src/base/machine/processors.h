#pragma once

#include <filesystem>

namespace accelerate::detail {

/// How many processors this process may keep busy: those it may run on (its
/// affinity), or fewer where its control group, or one around it, has a smaller
/// share of processor time; at least 1. `root`: below which /proc and /sys are.
int usable_processors(const std::filesystem::path& root = "/");

}  // namespace accelerate::detail
