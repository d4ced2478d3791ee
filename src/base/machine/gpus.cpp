#include "base/machine/gpus.h"

#include <algorithm>
#include <system_error>

#include "base/files/files.h"
#include "base/machine/processors.h"
#include "base/text/text.h"

namespace accelerate::detail {

namespace {

namespace fs = std::filesystem;

// The value of a line "Name: value".
std::string value_of_line(const std::string& text, std::string_view name) {
  for (const std::string& line : split(text, '\n')) {
    const std::size_t colon = line.find(':');
    if (colon != std::string::npos &&
        trim(std::string_view(line).substr(0, colon)) == name)
      return std::string(trim(std::string_view(line).substr(colon + 1)));
  }
  return {};
}

Gpu read_gpu(const fs::path& root, const std::string& address) {
  const std::string information = read_system_file(
      root / "proc/driver/nvidia/gpus" / address / "information");
  Gpu gpu{
      .address = address,
      .uuid = value_of_line(information, "GPU UUID"),
      .model = value_of_line(information, "Model"),
      .processors = parse_processor_list(read_system_file(
          root / "sys/bus/pci/devices" / address / "local_cpulist"))};
  // The driver writes question marks for a UUID that it does not tell.
  if (gpu.uuid.find('?') != std::string::npos) gpu.uuid.clear();
  return gpu;
}

// The place in `all` of the GPU that an entry of CUDA_VISIBLE_DEVICES names.
std::optional<std::size_t> place_of_gpu(
    const std::vector<Gpu>& all,
    std::string_view entry) {
  if (const auto number = parse_int(entry)) {
    if (*number < 0 || *number >= static_cast<long long>(all.size()))
      return std::nullopt;
    return static_cast<std::size_t>(*number);
  }
  if (!entry.starts_with("GPU-")) return std::nullopt;
  // The beginning of a UUID is enough.
  const auto found = std::find_if(all.begin(), all.end(), [&](const Gpu& gpu) {
    return gpu.uuid.starts_with(entry);
  });
  if (found == all.end()) return std::nullopt;
  return static_cast<std::size_t>(found - all.begin());
}

}  // namespace

std::vector<Gpu> nvidia_gpus(const fs::path& root) {
  std::vector<std::string> addresses;
  std::error_code failed;
  for (const auto& entry :
       fs::directory_iterator(root / "proc/driver/nvidia/gpus", failed))
    addresses.push_back(entry.path().filename().string());
  std::sort(addresses.begin(), addresses.end());
  std::vector<Gpu> gpus;
  for (const std::string& address : addresses)
    gpus.push_back(read_gpu(root, address));
  return gpus;
}

std::vector<Gpu> visible_gpus(
    const std::vector<Gpu>& all,
    const std::optional<std::string>& visible) {
  if (!visible) return all;
  std::vector<Gpu> seen;
  for (const std::string& word : split(*visible, ',')) {
    const std::string entry(trim(word));
    if (entry.starts_with("MIG-") && !all.empty()) {
      // CUDA shows a process one of them.
      seen.push_back({.uuid = entry});
      break;
    }
    const auto place = place_of_gpu(all, entry);
    const bool is_unknown = !place && entry.starts_with("GPU-") &&
        std::any_of(all.begin(), all.end(), [](const Gpu& gpu) {
          return gpu.uuid.empty();
        });
    // CUDA ignores all entries after an invalid one.
    if (!place && !is_unknown) break;
    seen.push_back(place ? all[*place] : Gpu{.uuid = entry});
  }
  return seen;
}

}  // namespace accelerate::detail
