#pragma once

#include <accelerate/device_map.h>

#include "modules/module_tree.h"

namespace accelerate::detail {

/// Accelerate's infer_auto_device_map on a module tree. Devices are filled in
/// their order; the first accelerator and the CPU keep room for the largest
/// layer of what still has no place. `options.max_memory` is what
/// normalised_memory() returned, not empty. Logs nothing: what a caller should
/// know is in DeviceMap::warnings().
///
/// Unlike the original it also works where a group of tied parameters is joined
/// to another one by a module that has members of both; all of them get one
/// place.
DeviceMap infer_device_map(
    const ModuleNode& root,
    const InferAutoDeviceMapOptions& options);

}  // namespace accelerate::detail
