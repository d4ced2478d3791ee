#pragma once

#include <accelerate/device_map.h>

#include "modules/module_tree.h"

namespace accelerate::detail {

/// Accelerate's infer_auto_device_map on a module tree. Devices are filled in
/// order; the first accelerator and the CPU keep room for the largest layer
/// among what is not placed yet. `options.max_memory` is what
/// normalised_memory() returned, not empty. Logs nothing; warnings are in
/// DeviceMap::warnings().
///
/// Unlike the original it also works if a module has members of several groups
/// of tied parameters; all those groups get one place.
DeviceMap infer_device_map(
    const ModuleNode& root,
    const InferAutoDeviceMapOptions& options);

}  // namespace accelerate::detail
