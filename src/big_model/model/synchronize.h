#pragma once

#include <ATen/DeviceAccelerator.h>
#include <c10/core/Device.h>

namespace accelerate::detail {

/// Waits for everything that this thread has queued on the device. For reading a
/// clock around it.
inline void synchronize(c10::Device device) {
  if (!device.is_cpu()) at::accelerator::synchronizeDevice(device.index());
}

}  // namespace accelerate::detail
