#include "base/machine/control_groups.h"

#include <string>

#include "base/files/files.h"
#include "base/machine/proc_text.h"

namespace accelerate::detail {

namespace {

std::vector<std::filesystem::path> from_own_to_top(
    const std::filesystem::path& top,
    std::string_view own) {
  std::vector<std::filesystem::path> groups;
  for (auto group = (top / own).lexically_normal();;
       group = group.parent_path()) {
    groups.push_back(group);
    if (group == top || !group.has_relative_path()) return groups;
  }
}

}  // namespace

ControlGroups control_groups(
    const std::filesystem::path& root,
    std::string_view controller) {
  const std::string own = read_system_file(root / "proc/self/cgroup");
  const std::filesystem::path mounted = root / "sys/fs/cgroup";
  return {
      from_own_to_top(mounted, cgroup_path(own).value_or("")),
      from_own_to_top(
          mounted / controller, cgroup_path(own, controller).value_or(""))};
}

}  // namespace accelerate::detail
