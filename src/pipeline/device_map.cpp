#include "pipeline/device_map.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include "big_model/plan/device_map_inference.h"
#include "big_model/plan/memory_limits.h"
#include "big_model/plan/module_sizes.h"

namespace accelerate::detail {

namespace {

// The share of each stage, in bytes.
std::int64_t memory_of_stage(const ModuleNode& root, int num_stages) {
  const double total = total_module_size(root, {});
  const double largest = largest_layer(root, {}, {}).num_bytes;
  return static_cast<std::int64_t>(
      std::floor(1.1 * std::ceil((total + largest) / num_stages)));
}

}  // namespace

DeviceMapSplit split_by_device_map(
    const ModuleNode& root,
    int num_stages,
    const std::vector<std::string>& no_split_module_classes) {
  InferAutoDeviceMapOptions options;
  options.no_split_module_classes = no_split_module_classes;
  options.clean_result = false;
  MaxMemory memory;
  if (num_stages == 1) {
    memory.emplace_back(
        MapDevice("cpu"),
        ByteSize(std::numeric_limits<std::int64_t>::max() / 2));
  } else {
    const std::int64_t share = memory_of_stage(root, num_stages);
    for (int stage = 0; stage < num_stages; ++stage)
      memory.emplace_back(MapDevice(stage), ByteSize(share));
  }
  options.max_memory = normalised_memory(memory);
  DeviceMapSplit split{infer_device_map(root, options), {}};
  for (int stage = 1; stage < num_stages; ++stage) {
    std::optional<std::string>& point = split.points.emplace_back();
    for (const Placement& each : split.map.placements()) {
      if (each.device.index() != stage) continue;
      point = each.name;
      break;
    }
  }
  return split;
}

}  // namespace accelerate::detail
