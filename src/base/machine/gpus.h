#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace accelerate::detail {

/// A GPU of NVIDIA, as the kernel describes it.
struct Gpu {
  /// Its PCI address, "0000:3b:00.0"; empty for a part of a GPU (MIG).
  std::string address = {};
  /// "GPU-0a1b..."; empty if the driver does not tell.
  std::string uuid = {};
  /// "NVIDIA H100 80GB HBM3".
  std::string model = {};
  /// The processors of its NUMA node; empty if unknown.
  std::vector<int> processors = {};
};

/// The GPUs that the driver has given to this machine or container, in the
/// order of their PCI addresses. `root` is where /proc and /sys are.
std::vector<Gpu> nvidia_gpus(const std::filesystem::path& root = "/");

/// The GPUs of `all` that a process sees with this value of
/// CUDA_VISIBLE_DEVICES (unset: all of them), in its order. Numbers are places
/// in `all`, as with CUDA_DEVICE_ORDER=PCI_BUS_ID.
std::vector<Gpu> visible_gpus(
    const std::vector<Gpu>& all,
    const std::optional<std::string>& visible);

}  // namespace accelerate::detail
