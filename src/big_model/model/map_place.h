#pragma once

#include <c10/core/Device.h>

#include <accelerate/device_map.h>

namespace accelerate::detail {

/// The device of a place where tensors can be: the CPU for "disk". Throws
/// ConfigError for an accelerator that the machine does not have.
c10::Device torch_device(const MapDevice& place);

}  // namespace accelerate::detail
