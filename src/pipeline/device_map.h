#pragma once

#include <optional>
#include <string>
#include <vector>

#include <accelerate/device_map.h>

#include "modules/module_tree.h"

namespace accelerate::detail {

/// How Accelerate's "auto" divides a model into stages: a device map of devices
/// that have a tenth more than an equal share of the model and its largest
/// layer each.
struct DeviceMapSplit {
  DeviceMap map;
  /// The first module on each device but the first; nothing for an empty one.
  std::vector<std::optional<std::string>> points;
};

/// Accelerate's generate_device_map, with sizes in bytes.
DeviceMapSplit split_by_device_map(
    const ModuleNode& root,
    int num_stages,
    const std::vector<std::string>& no_split_module_classes);

}  // namespace accelerate::detail
