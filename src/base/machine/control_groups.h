#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace accelerate::detail {

/// Directories of the control groups to which this process belongs: its own
/// first, then its ancestors. Inside a container, the path of its own group may
/// not exist; its limits are then at the root, which comes last.
struct ControlGroups {
  /// The unified hierarchy (version 2).
  std::vector<std::filesystem::path> unified;
  /// The controller's hierarchy (version 1).
  std::vector<std::filesystem::path> of_controller;
};

/// `controller`: a version 1 controller, such as "memory". `root`: the root of
/// the file system. Directories need not exist.
ControlGroups control_groups(
    const std::filesystem::path& root,
    std::string_view controller);

}  // namespace accelerate::detail
