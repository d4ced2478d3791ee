#pragma once

#include <c10/core/Device.h>

#include <accelerate/world.h>

#include "config/environment.h"
#include "config/settings.h"

namespace accelerate::detail {

/// A process's place among those of its machine that choose devices.
struct DevicePlace {
  int index = 0;
  int num_processes = 1;
};

/// The device on which a rank computes: that of the options, the launcher's, or
/// the accelerator of its place, else the CPU. A device without an index is the
/// one of the place. Throws ConfigError for a device that this LibTorch or
/// machine lacks, and where more processes than accelerators choose one, unless
/// they may share them (share_devices) or each process sees its own.
at::Device choose_device(
    const WorldOptions& options,
    const Settings& settings,
    const Environment& environment,
    const DevicePlace& place);

}  // namespace accelerate::detail
