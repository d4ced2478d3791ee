#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/machine/nccl_file.h"

namespace accelerate::detail {

/// What lies between two GPUs, nearest first.
enum class GpuPath {
  nvlink,
  pcie_switch,  ///< without leaving the switches of PCIe
  host_bridge,  ///< through the processor that both are attached to
  across_processors,
  unknown,
};

/// Two GPUs, by their numbers in the order of PCI addresses.
struct GpuPair {
  int first = 0;
  int second = 0;
  GpuPath path = GpuPath::unknown;
  /// Whether each can read and write the other's memory; unset if unknown.
  std::optional<bool> are_peers = std::nullopt;
};

/// A GPU's own connections.
struct GpuConnections {
  int num_nvlinks = 0;
  /// Generation and lanes of PCIe that the GPU and its slot agree on at most; 0
  /// if unknown.
  int pcie_generation = 0;
  int pcie_lanes = 0;
};

/// How the GPUs of this machine are connected.
struct GpuLinks {
  std::vector<GpuConnections> gpus = {};
  std::vector<GpuPair> pairs = {};
};

/// NVML's functions, found at run time, by their names in nvml.h; 0 is success.
/// Those that an old driver lacks are null.
struct NvmlLinkFunctions {
  using Device = void*;

  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*device)(unsigned index, Device*) = nullptr;
  int (*nvlink_state)(Device, unsigned link, int* is_active) = nullptr;
  int (*common_ancestor)(Device, Device, int* level) = nullptr;
  int (*peer_status)(Device, Device, int capability, int* status) = nullptr;
  int (*pcie_generation)(Device, unsigned*) = nullptr;
  int (*pcie_lanes)(Device, unsigned*) = nullptr;
};

/// Opens NVML. Nothing if this machine has no driver of NVIDIA. Never closed.
std::optional<NvmlLinkFunctions> open_nvml_links();

/// Nothing if NVML cannot be used, or knows no GPU.
std::optional<GpuLinks> read_gpu_links(const NvmlLinkFunctions& nvml);

/// A fact's name and its value.
using MachineFact = std::pair<std::string, std::string>;

/// "Links between GPUs" and "GPUs as peers", each in one line.
std::vector<MachineFact> describe_gpu_links(const GpuLinks& links);

/// NCCL's version, and how GPUs are connected, for reports. One line that says
/// what is missing if the machine has none of NVIDIA's libraries.
std::vector<MachineFact> nvidia_facts(
    const NcclFile& nccl,
    const std::optional<NvmlLinkFunctions>& nvml);

}  // namespace accelerate::detail
