#include "base/available_memory.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>

#include "base/proc_text.h"

namespace accelerate::detail {

namespace {

std::string text_of(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

/// Control groups of one version of Linux's interface.
struct Groups {
  std::filesystem::path top;
  /// The process's own, below the top.
  std::string path;
  const char* limit;
  const char* used;
  const char* cached_key;
};

// What a control group leaves; nothing without a limit.
std::optional<std::uint64_t> left_in_group(
    const Groups& groups,
    const std::filesystem::path& group) {
  const auto limit = lone_number(text_of(group / groups.limit));
  const auto used = lone_number(text_of(group / groups.used));
  if (!limit || !used) return std::nullopt;
  // Cached files give way to programs, as in MemAvailable.
  const std::uint64_t cached =
      keyed_number(text_of(group / "memory.stat"), groups.cached_key)
          .value_or(0);
  const std::uint64_t needed = *used - std::min(*used, cached);
  return *limit - std::min(*limit, needed);
}

}  // namespace

std::optional<std::uint64_t> available_memory(
    const std::filesystem::path& root) {
  auto available =
      meminfo_bytes(text_of(root / "proc/meminfo"), "MemAvailable");
  if (!available) return std::nullopt;
  const std::string own = text_of(root / "proc/self/cgroup");
  const std::filesystem::path mounted = root / "sys/fs/cgroup";
  // A path that cannot be seen from inside a container counts as the top.
  const std::array<Groups, 2> versions{
      Groups{
          mounted,
          std::string(cgroup_path(own).value_or("")),
          "memory.max",
          "memory.current",
          "inactive_file"},
      Groups{
          mounted / "memory",
          std::string(cgroup_path(own, "memory").value_or("")),
          "memory.limit_in_bytes",
          "memory.usage_in_bytes",
          "total_inactive_file"}};
  for (const Groups& groups : versions) {
    // Inside of a container the path may lead nowhere; its own limit is at the
    // top then.
    for (auto group = (groups.top / groups.path).lexically_normal();;
         group = group.parent_path()) {
      if (const auto left = left_in_group(groups, group))
        available = std::min(*available, *left);
      if (group == groups.top || !group.has_relative_path()) break;
    }
  }
  return available;
}

std::optional<std::uint64_t> free_disk_space(
    const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::path there = std::filesystem::absolute(path, error);
  while (!std::filesystem::exists(there, error) && there.has_relative_path())
    there = there.parent_path();
  const auto space = std::filesystem::space(there, error);
  if (error) return std::nullopt;
  return space.available;
}

}  // namespace accelerate::detail
