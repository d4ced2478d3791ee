#include "base/machine/processors.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <thread>

#include "base/machine/control_groups.h"
#include "base/text/text.h"

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

// Number of processors' time per period: "200000 100000" is two; "max", or -1
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
  const ControlGroups groups = control_groups(root, "cpu");
  for (const auto* const version : {&groups.unified, &groups.of_controller}) {
    for (const std::filesystem::path& group : *version) {
      if (const auto quota = quota_of(group))
        processors = std::min(processors, *quota);
    }
  }
  // Half a processor still runs one thread; two and a half keep two busy.
  return std::max(1, static_cast<int>(std::floor(processors)));
}

}  // namespace accelerate::detail
