#include "base/available_memory.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>

#include "base/proc_text.h"

namespace accelerate::detail {

namespace {

std::string text_of(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// What a control group leaves; nothing without a limit.
std::optional<std::uint64_t> left_in_group(const std::filesystem::path& group) {
  const auto limit = lone_number(text_of(group / "memory.max"));
  const auto used = lone_number(text_of(group / "memory.current"));
  if (!limit || !used) return std::nullopt;
  // Cached files give way to programs, as in MemAvailable.
  const std::uint64_t cached =
      keyed_number(text_of(group / "memory.stat"), "inactive_file").value_or(0);
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
  const auto path = cgroup_path(own);
  if (!path) return available;
  const std::filesystem::path top = root / "sys/fs/cgroup";
  // Inside of a container the path may lead nowhere; its own limit is at the
  // top then.
  for (auto group = (top / *path).lexically_normal();;
       group = group.parent_path()) {
    if (const auto left = left_in_group(group))
      available = std::min(*available, *left);
    if (group == top || !group.has_relative_path()) break;
  }
  return available;
}

}  // namespace accelerate::detail
