#include "big_model/model/map_place.h"

#include <ATen/DeviceAccelerator.h>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

c10::Device torch_device(const MapDevice& place) {
  if (place.is_meta()) return c10::kMeta;
  if (!place.is_accelerator()) return c10::kCPU;
  const auto kind = at::getAccelerator(/*checked=*/false);
  const bool has_devices = kind.has_value() &&
      at::accelerator::deviceCount() > place.index().value_or(0);
  if (!has_devices) {
    throw ConfigError(format(
        "[big_model] the device map names the device {}, but this machine has "
        "{} accelerators",
        place.name(),
        kind ? static_cast<int>(at::accelerator::deviceCount()) : 0));
  }
  return {*kind, static_cast<c10::DeviceIndex>(place.index().value_or(0))};
}

}  // namespace accelerate::detail
