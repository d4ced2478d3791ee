#include "base/processors.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/proc_text.h"
#include "base/text.h"

namespace accelerate::detail {

namespace {

std::string file_text(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::optional<double> positive(std::string_view text) {
  const auto number = parse_int(trim(text));
  if (!number || *number <= 0) return std::nullopt;
  return static_cast<double>(*number);
}

// Processors' worth of time in each period: "200000 100000" is two; "max", or -1
// in version 1, means no limit.
std::optional<double> quota_of(const std::filesystem::path& group) {
  const std::string text = file_text(group / "cpu.max");
  const std::size_t space = text.find(' ');
  auto quota = positive(text.substr(0, space));
  auto period = space == std::string::npos
      ? std::nullopt
      : positive(std::string_view(text).substr(space));
  if (text.empty()) {
    quota = positive(file_text(group / "cpu.cfs_quota_us"));
    period = positive(file_text(group / "cpu.cfs_period_us"));
  }
  if (!quota || !period) return std::nullopt;
  return *quota / *period;
}

int processors_in_affinity() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::thread::hardware_concurrency());
}

}  // namespace

int usable_processors(const std::filesystem::path& root) {
  double processors = processors_in_affinity();
  const std::string own = file_text(root / "proc/self/cgroup");
  const std::filesystem::path mounted = root / "sys/fs/cgroup";
  const std::vector<std::pair<std::filesystem::path, std::string>> versions{
      {mounted, std::string(cgroup_path(own).value_or(""))},
      {mounted / "cpu", std::string(cgroup_path(own, "cpu").value_or(""))}};
  for (const auto& [top, path] : versions) {
    // Inside of a container the path may lead nowhere; its own limit is at the
    // top then.
    for (auto group = (top / path).lexically_normal();;
         group = group.parent_path()) {
      if (const auto quota = quota_of(group))
        processors = std::min(processors, *quota);
      if (group == top || !group.has_relative_path()) break;
    }
  }
  // Half a processor still runs one thread; two and a half keep two busy.
  return std::max(1, static_cast<int>(std::floor(processors)));
}

}  // namespace accelerate::detail
