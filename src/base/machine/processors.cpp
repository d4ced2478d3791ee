#include "base/machine/processors.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <system_error>
#include <thread>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "base/machine/control_groups.h"
#include "base/text/text.h"

namespace accelerate::detail {

namespace {

std::optional<double> positive(std::string_view text) {
  const auto number = parse_int(trim(text));
  if (!number || *number <= 0) return std::nullopt;
  return static_cast<double>(*number);
}

// Number of processors' time per period: "200000 100000" is two; "max", or -1
// in version 1, means no limit.
std::optional<double> quota_of(const std::filesystem::path& group) {
  const std::string text = read_system_file(group / "cpu.max");
  const std::size_t space = text.find(' ');
  auto quota = positive(text.substr(0, space));
  auto period = space == std::string::npos
      ? std::nullopt
      : positive(std::string_view(text).substr(space));
  if (text.empty()) {
    quota = positive(read_system_file(group / "cpu.cfs_quota_us"));
    period = positive(read_system_file(group / "cpu.cfs_period_us"));
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

namespace fs = std::filesystem;

constexpr std::string_view kNvidia = "0x10de";
constexpr std::string_view kAmd = "0x1002";

// The contents of a kernel file; empty if it cannot be read.
std::string attribute(const fs::path& device, const char* name) {
  try {
    return std::string(trim(read_file(device / name)));
  } catch (const Error&) {
    return {};
  }
}

// PCI's classes of display controllers and processing accelerators.
bool is_gpu(const fs::path& device, std::string_view vendor) {
  if (attribute(device, "vendor") != vendor) return false;
  const std::string kind = attribute(device, "class");
  return kind.starts_with("0x03") || kind.starts_with("0x12");
}

// Sorted by address, which is the directory's name.
std::vector<fs::path> gpus_of(
    const fs::path& pci_devices,
    std::string_view vendor) {
  std::vector<fs::path> gpus;
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(pci_devices, failed)) {
    if (is_gpu(entry.path(), vendor)) gpus.push_back(entry.path());
  }
  std::sort(gpus.begin(), gpus.end());
  return gpus;
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

std::vector<int> parse_processor_list(std::string_view text) {
  constexpr long long kMost = 1 << 20;
  std::vector<int> processors;
  for (const std::string& item : split(trim(text), ',')) {
    const std::size_t dash = item.find('-');
    const auto first = parse_int(item.substr(0, dash));
    const auto last =
        dash == std::string::npos ? first : parse_int(item.substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first || *last > kMost)
      return {};
    for (long long number = *first; number <= *last; ++number)
      processors.push_back(static_cast<int>(number));
  }
  return processors;
}

std::vector<int> processors_of_gpu(const fs::path& pci_devices, int number) {
  std::vector<fs::path> gpus = gpus_of(pci_devices, kNvidia);
  if (gpus.empty()) gpus = gpus_of(pci_devices, kAmd);
  if (number < 0 || static_cast<std::size_t>(number) >= gpus.size()) return {};
  return parse_processor_list(
      attribute(gpus[static_cast<std::size_t>(number)], "local_cpulist"));
}

}  // namespace accelerate::detail
