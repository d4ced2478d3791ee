#pragma once

#include <optional>
#include <string>
#include <vector>

#include <accelerate/device_map.h>
#include <accelerate/pipeline_layers.h>

#include "modules/module_tree.h"

namespace accelerate::detail {

/// Returns the split points of Accelerate's device map. It keeps room for the
/// largest layer on the first device, so it can leave ranks without layers; in
/// that case all get shares as equal as possible.
std::vector<std::string> automatic_split(
    const PipelineLayers& layers,
    std::vector<std::string> no_split_module_classes,
    int num_ranks);

std::vector<std::string> layer_names(const PipelineLayers& layers);

/// How Accelerate's "auto" divides a model into stages: a device map over
/// devices, each with 10% more memory than an equal share of the model plus its
/// largest layer.
struct DeviceMapSplit {
  DeviceMap map;
  /// The first module on each device but the first; nothing for an empty
  /// device.
  std::vector<std::optional<std::string>> points;
};

/// Accelerate's generate_device_map, with sizes in bytes.
DeviceMapSplit split_by_device_map(
    const ModuleNode& root,
    int num_stages,
    const std::vector<std::string>& no_split_module_classes);

}  // namespace accelerate::detail
