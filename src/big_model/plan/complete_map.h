#pragma once

#include <accelerate/device_map.h>

#include "modules/module_tree.h"

namespace accelerate::detail {

/// Adds places for the buffers of split modules, which Accelerate's rules leave
/// without one: each goes to the first place of its module that has room, or
/// otherwise to the module's last place.
DeviceMap complete_device_map(const ModuleNode& root, const DeviceMap& map);

}  // namespace accelerate::detail
