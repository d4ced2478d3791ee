#include "cli/launch/machine/machine.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include <sched.h>
#include <unistd.h>

#include "base/text/text.h"
#include "cli/launch/machine/processor_sets.h"

namespace accelerate::cli {

namespace {

namespace fs = std::filesystem;

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::vector<int> allowed_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> processors;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return {0};
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &set)) processors.push_back(i);
  }
  return processors;
}

int physical_cores(const std::vector<int>& processors) {
  std::set<std::pair<int, int>> cores;
  for (const Processor& each : with_topology(processors)) {
    cores.emplace(each.package, each.core);
  }
  return std::max(static_cast<int>(cores.size()), 1);
}

// cgroup v2 has one file, "max 100000" or "150000 100000"; v1 has two files.
int cgroup_cores(int limit) {
  const auto cores_of = [&](double quota, double period) {
    if (quota <= 0 || period <= 0) return limit;
    return std::clamp(static_cast<int>(quota / period), 1, limit);
  };
  std::ifstream list("/proc/self/cgroup");
  std::string line;
  while (std::getline(list, line)) {
    if (!line.starts_with("0::")) continue;
    fs::path directory = fs::path("/sys/fs/cgroup") / line.substr(4);
    for (; directory != "/sys/fs"; directory = directory.parent_path()) {
      const auto words = detail::split(first_line(directory / "cpu.max"), ' ');
      if (words.size() == 2 && words[0] != "max") {
        const auto quota = detail::parse_double(words[0]);
        const auto period = detail::parse_double(words[1]);
        if (quota && period) limit = std::min(limit, cores_of(*quota, *period));
      }
    }
  }
  const auto quota =
      detail::parse_double(first_line("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"));
  const auto period =
      detail::parse_double(first_line("/sys/fs/cgroup/cpu/cpu.cfs_period_us"));
  return quota && period ? std::min(limit, cores_of(*quota, *period)) : limit;
}

// A variable that is set but empty hides all of them.
std::vector<detail::Gpu> seen_gpus(
    const detail::Environment& environment,
    const fs::path& root) {
  const auto& all = environment.all();
  const auto visible = all.find("CUDA_VISIBLE_DEVICES");
  return detail::visible_gpus(
      detail::nvidia_gpus(root),
      visible == all.end() ? std::nullopt : std::optional(visible->second));
}

}  // namespace

Machine look_at_machine(
    const detail::Environment& environment,
    const fs::path& root) {
  Machine machine;
  machine.processors = allowed_processors();
  machine.physical_cores = physical_cores(machine.processors);
  machine.usable_cores =
      cgroup_cores(std::max(static_cast<int>(machine.processors.size()), 1));
  machine.gpus = seen_gpus(environment, root);
  return machine;
}

}  // namespace accelerate::cli
