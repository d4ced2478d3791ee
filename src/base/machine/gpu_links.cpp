#include "base/machine/gpu_links.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include "base/machine/nccl_file.h"
#include "base/text/text.h"

namespace accelerate::detail {

namespace {

// Values in nvml.h: NVML_NVLINK_MAX_LINKS, nvmlGpuP2PCapsIndex_t,
// nvmlGpuP2PStatus_t and nvmlGpuTopologyLevel_t.
constexpr unsigned kMostNvlinks = 18;
constexpr int kReads = 0, kWrites = 1, kByNvlink = 2;
constexpr int kPeersOk = 0, kPeersUnknown = 6;
constexpr int kSwitches = 20, kHostBridge = 30, kProcessor = 40, kSystem = 50;

template <class Function>
void find_function(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(library, name));
}

int number_of(int (*function)(void*, unsigned*), void* device) {
  unsigned number = 0;
  const bool is_known = function != nullptr && function(device, &number) == 0;
  return is_known ? static_cast<int>(number) : 0;
}

GpuConnections connections_of(const NvmlLinkFunctions& nvml, void* device) {
  GpuConnections found{
      .pcie_generation = number_of(nvml.pcie_generation, device),
      .pcie_lanes = number_of(nvml.pcie_lanes, device)};
  for (unsigned link = 0; nvml.nvlink_state && link < kMostNvlinks; ++link) {
    int is_active = 0;
    if (nvml.nvlink_state(device, link, &is_active) == 0 && is_active == 1)
      ++found.num_nvlinks;
  }
  return found;
}

// Whether two GPUs have a capability of peers; unset if the driver does not
// say.
std::optional<bool>
have(const NvmlLinkFunctions& nvml, void* a, void* b, int capability) {
  int status = kPeersUnknown;
  if (nvml.peer_status == nullptr ||
      nvml.peer_status(a, b, capability, &status) != 0 ||
      status == kPeersUnknown)
    return std::nullopt;
  return status == kPeersOk;
}

GpuPath path_between(const NvmlLinkFunctions& nvml, void* a, void* b) {
  if (have(nvml, a, b, kByNvlink).value_or(false)) return GpuPath::nvlink;
  int level = kSystem + 1;
  if (nvml.common_ancestor == nullptr ||
      nvml.common_ancestor(a, b, &level) != 0 || level > kSystem)
    return GpuPath::unknown;
  if (level <= kSwitches) return GpuPath::pcie_switch;
  if (level <= kHostBridge || level <= kProcessor) return GpuPath::host_bridge;
  return GpuPath::across_processors;
}

std::string_view name_of(GpuPath path) {
  constexpr std::array<std::string_view, 5> kNames{
      "NVLink",
      "PCIe, by a switch",
      "PCIe, by one processor",
      "PCIe, across processors",
      "unknown"};
  return kNames[static_cast<std::size_t>(path)];
}

std::string name_of(const GpuPair& pair) {
  return format("{}-{}", pair.first, pair.second);
}

// "all", or the pairs.
std::string name_of(
    const std::vector<std::string>& pairs,
    std::size_t num_pairs) {
  return pairs.size() == num_pairs ? "all" : join(pairs, " ");
}

// "0 to 7: 18 NVLinks, PCIe 5 x16"; GPUs with equal connections once.
std::string describe_gpus(const std::vector<GpuConnections>& gpus) {
  std::vector<std::string> parts;
  for (std::size_t first = 0; first < gpus.size();) {
    const GpuConnections& each = gpus[first];
    std::size_t last = first;
    while (last + 1 < gpus.size() &&
           gpus[last + 1].num_nvlinks == each.num_nvlinks &&
           gpus[last + 1].pcie_generation == each.pcie_generation &&
           gpus[last + 1].pcie_lanes == each.pcie_lanes)
      ++last;
    std::string text =
        last == first ? format("{}", first) : format("{} to {}", first, last);
    text += each.num_nvlinks > 0 ? format(": {} NVLinks", each.num_nvlinks)
                                 : std::string(": no NVLink");
    if (each.pcie_generation > 0 && each.pcie_lanes > 0)
      text += format(", PCIe {} x{}", each.pcie_generation, each.pcie_lanes);
    parts.push_back(std::move(text));
    first = last + 1;
  }
  return join(parts, "; ");
}

std::string describe_paths(const std::vector<GpuPair>& pairs) {
  std::map<GpuPath, std::vector<std::string>> by_path;
  for (const GpuPair& pair : pairs) by_path[pair.path].push_back(name_of(pair));
  std::vector<std::string> parts;
  for (const auto& [path, names] : by_path)
    parts.push_back(
        format("{}: {}", name_of(names, pairs.size()), name_of(path)));
  return join(parts, "; ");
}

std::string describe_peers(const std::vector<GpuPair>& pairs) {
  std::vector<std::string> apart, unknown;
  for (const GpuPair& pair : pairs) {
    if (!pair.are_peers) unknown.push_back(name_of(pair));
    if (pair.are_peers && !*pair.are_peers) apart.push_back(name_of(pair));
  }
  if (apart.empty() && unknown.empty()) return "each reaches all others";
  std::vector<std::string> parts;
  if (!apart.empty()) {
    parts.push_back(format(
        "{}: cannot reach each other, NCCL goes through host memory",
        name_of(apart, pairs.size())));
  }
  if (!unknown.empty())
    parts.push_back(format("{}: unknown", name_of(unknown, pairs.size())));
  return join(parts, "; ");
}

std::string version_of_nccl(void* library) {
  int (*version)(int*) = nullptr;
  int number = 0;
  find_function(library, "ncclGetVersion", version);
  if (version == nullptr || version(&number) != 0)
    return "of an unknown version";
  return nccl_version_text(number);
}

}  // namespace

std::optional<NvmlLinkFunctions> open_nvml_links() {
  void* const library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return std::nullopt;
  NvmlLinkFunctions nvml;
  find_function(library, "nvmlInit_v2", nvml.init);
  find_function(library, "nvmlShutdown", nvml.shutdown);
  find_function(library, "nvmlDeviceGetCount_v2", nvml.count);
  find_function(library, "nvmlDeviceGetHandleByIndex_v2", nvml.device);
  find_function(library, "nvmlDeviceGetNvLinkState", nvml.nvlink_state);
  find_function(
      library, "nvmlDeviceGetTopologyCommonAncestor", nvml.common_ancestor);
  find_function(library, "nvmlDeviceGetP2PStatus", nvml.peer_status);
  find_function(
      library, "nvmlDeviceGetMaxPcieLinkGeneration", nvml.pcie_generation);
  find_function(library, "nvmlDeviceGetMaxPcieLinkWidth", nvml.pcie_lanes);
  return nvml;
}

std::optional<GpuLinks> read_gpu_links(const NvmlLinkFunctions& nvml) {
  if (nvml.init == nullptr || nvml.shutdown == nullptr ||
      nvml.count == nullptr || nvml.device == nullptr || nvml.init() != 0)
    return std::nullopt;
  unsigned count = 0;
  std::vector<void*> devices;
  if (nvml.count(&count) == 0) {
    for (unsigned i = 0; i < count; ++i) {
      void* device = nullptr;
      if (nvml.device(i, &device) == 0) devices.push_back(device);
    }
  }
  GpuLinks links;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    links.gpus.push_back(connections_of(nvml, devices[i]));
    for (std::size_t j = i + 1; j < devices.size(); ++j) {
      const auto reads = have(nvml, devices[i], devices[j], kReads);
      const auto writes = have(nvml, devices[i], devices[j], kWrites);
      links.pairs.push_back(
          {.first = static_cast<int>(i),
           .second = static_cast<int>(j),
           .path = path_between(nvml, devices[i], devices[j]),
           .are_peers = reads && writes ? std::optional(*reads && *writes)
                                        : std::nullopt});
    }
  }
  nvml.shutdown();
  if (links.gpus.empty()) return std::nullopt;
  return links;
}

std::vector<MachineFact> describe_gpu_links(const GpuLinks& links) {
  std::vector<MachineFact> facts{
      {"Connections of GPUs", describe_gpus(links.gpus)}};
  if (links.pairs.empty()) return facts;
  facts.emplace_back("Links between GPUs", describe_paths(links.pairs));
  facts.emplace_back("GPUs as peers", describe_peers(links.pairs));
  return facts;
}

std::vector<MachineFact> nvidia_facts(
    const NcclFile& nccl,
    const std::optional<NvmlLinkFunctions>& nvml) {
  constexpr const char* kNoDriver = "libnvidia-ml.so.1 is not here";
  if (nccl.handle == nullptr && !nvml) {
    return {
        {"NCCL and NVIDIA's driver",
         format("none: {}; {}", kNoDriver, nccl.problem)}};
  }
  std::vector<MachineFact> facts{
      {"NCCL",
       nccl.handle != nullptr ? version_of_nccl(nccl.handle) : nccl.problem}};
  const auto links = nvml ? read_gpu_links(*nvml) : std::nullopt;
  if (!links) {
    facts.emplace_back(
        "Links between GPUs",
        nvml ? std::string("unknown: NVIDIA's driver reports no GPU")
             : format("unknown: {}", kNoDriver));
    return facts;
  }
  for (MachineFact& fact : describe_gpu_links(*links))
    facts.push_back(std::move(fact));
  return facts;
}

}  // namespace accelerate::detail
