#include "base/machine/numa.h"

#include <algorithm>
#include <string>
#include <system_error>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "base/text/text.h"

namespace accelerate::detail {

namespace {

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
