#pragma once

#include <ATen/DeviceAccelerator.h>
#include <c10/core/Device.h>

namespace accelerate::detail {

/// Waits for what this thread has asked the device to do, so that a clock that
/// is read next has all of it.
inline void wait_for(c10::Device device) {
  if (!device.is_cpu()) at::accelerator::synchronizeDevice(device.index());
}

}  // namespace accelerate::detail
