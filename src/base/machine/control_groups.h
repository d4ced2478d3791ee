#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace accelerate::detail {

/// Directories of the control groups to which this process belongs, its own
/// first, then those above it. Inside of a container the path of its own may lead
/// nowhere; its limits are at the top then, which is the last.
struct ControlGroups {
  /// The unified hierarchy (version 2).
  std::vector<std::filesystem::path> unified;
  /// That of the controller (version 1).
  std::vector<std::filesystem::path> of_controller;
};

/// `controller`: that of version 1, such as "memory". `root`: that of the file
/// system. Directories need not exist.
ControlGroups control_groups(
    const std::filesystem::path& root,
    std::string_view controller);

}  // namespace accelerate::detail
