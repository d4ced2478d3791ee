#pragma once

#include <string>
#include <vector>

#include <accelerate/device_map.h>

#include "modules/module_tree.h"

namespace accelerate::detail {

/// What is wrong with a device map for a model.
struct DeviceMapComplaints {
  /// Entries that name neither a module nor a parameter or buffer.
  std::vector<std::string> unknown;
  /// Tensors of the state dict without a place.
  std::vector<std::string> missing;
};

DeviceMapComplaints find_complaints(
    const ModuleNode& root,
    const DeviceMap& map);

/// Throws ConfigError naming the tensors without a place. Returns a warning
/// about entries that match no module, empty if there are none.
std::string require_complete_map(const ModuleNode& root, const DeviceMap& map);

/// Adds places for the buffers of split modules, which Accelerate's rules leave
/// without one: each goes to the first place of its module that has room, or
/// otherwise to the module's last place.
DeviceMap complete_device_map(const ModuleNode& root, const DeviceMap& map);

}  // namespace accelerate::detail
