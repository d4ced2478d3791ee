#include "base/machine/available_memory.h"

#include <algorithm>
#include <system_error>
#include <vector>

#include "base/files/files.h"
#include "base/machine/control_groups.h"
#include "base/machine/proc_text.h"

namespace accelerate::detail {

namespace {

/// The files of one version of Linux's interface.
struct MemoryFiles {
  const char* limit;
  const char* used;
  const char* cached_key;
};

// Memory left in a control group; nothing if it has no limit.
std::optional<std::uint64_t> left_in_group(
    const MemoryFiles& files,
    const std::filesystem::path& group) {
  const auto limit = lone_number(read_system_file(group / files.limit));
  const auto used = lone_number(read_system_file(group / files.used));
  if (!limit || !used) return std::nullopt;
  // Cached files can be evicted for programs, as in MemAvailable.
  const std::uint64_t cached =
      keyed_number(read_system_file(group / "memory.stat"), files.cached_key)
          .value_or(0);
  const std::uint64_t needed = *used - std::min(*used, cached);
  return *limit - std::min(*limit, needed);
}

}  // namespace

std::optional<std::uint64_t> available_memory(
    const std::filesystem::path& root) {
  auto available =
      meminfo_bytes(read_system_file(root / "proc/meminfo"), "MemAvailable");
  if (!available) return std::nullopt;
  const ControlGroups groups = control_groups(root, "memory");
  const auto look = [&](const std::vector<std::filesystem::path>& directories,
                        const MemoryFiles& files) {
    for (const std::filesystem::path& group : directories) {
      if (const auto left = left_in_group(files, group))
        available = std::min(*available, *left);
    }
  };
  look(groups.unified, {"memory.max", "memory.current", "inactive_file"});
  look(
      groups.of_controller,
      {"memory.limit_in_bytes",
       "memory.usage_in_bytes",
       "total_inactive_file"});
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
