#include "big_model/plan/complete_map.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "big_model/plan/check_map.h"

namespace accelerate::detail {

namespace {

void collect_buffer_sizes(
    const ModuleNode& module,
    const std::string& name,
    std::map<std::string, double>& sizes) {
  for (const ModuleTensor& buffer : module.buffers) {
    sizes.emplace(
        dotted_name(name, buffer.name), static_cast<double>(buffer.num_bytes));
  }
  for (const ModuleNode& child : module.children)
    collect_buffer_sizes(child, dotted_name(name, child.name), sizes);
}

bool has_room(const DeviceUse& use, double num_bytes) {
  return !use.max_memory ||
      use.num_bytes + use.num_bytes_reserved + num_bytes <=
      static_cast<double>(*use.max_memory);
}

}  // namespace

DeviceMap complete_device_map(const ModuleNode& root, const DeviceMap& map) {
  const std::vector<std::string> missing = find_complaints(root, map).missing;
  if (missing.empty()) return map;
  std::map<std::string, double> sizes;
  collect_buffer_sizes(root, "", sizes);
  std::vector<Placement> placements = map.placements();
  std::vector<DeviceUse> uses = map.devices();
  const auto use_of = [&](const MapDevice& device) {
    return std::find_if(uses.begin(), uses.end(), [&](const DeviceUse& use) {
      return use.device == device;
    });
  };
  for (const std::string& name : missing) {
    const auto size = sizes.find(name);
    if (size == sizes.end()) continue;
    const std::string prefix = name.substr(0, name.rfind('.') + 1);
    const Placement* chosen = nullptr;
    for (const Placement& each : map.placements()) {
      if (!each.name.starts_with(prefix)) continue;
      chosen = &each;
      const auto use = use_of(each.device);
      if (use != uses.end() && has_room(*use, size->second)) break;
    }
    if (chosen == nullptr) continue;
    const auto use = use_of(chosen->device);
    Placement placement{name, chosen->device, PlacementReason::fits};
    placement.num_bytes = size->second;
    if (use != uses.end()) {
      placement.num_bytes_used = use->num_bytes;
      use->num_bytes += size->second;
    }
    placements.push_back(std::move(placement));
  }
  return DeviceMap(std::move(placements), std::move(uses), map.warnings());
}

}  // namespace accelerate::detail
