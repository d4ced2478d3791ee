#include <accelerate/environment.h>

#include <ATen/DeviceAccelerator.h>

#include <accelerate/error.h>

#include "config/environment.h"
#include "config/files/config_file.h"

namespace accelerate {

std::optional<std::filesystem::path> write_basic_config(
    const BasicConfigOptions& options) {
  std::filesystem::path path = options.save_location;
  if (path.empty()) {
    const auto usual =
        detail::default_config_path(detail::Environment::current());
    if (!usual) {
      throw ConfigError(
          "[config] neither HF_HOME, XDG_CACHE_HOME nor HOME is set; give "
          "write_basic_config() a save_location");
    }
    path = *usual;
  }
  const int num_devices = options.num_devices.value_or(
      static_cast<int>(at::accelerator::deviceCount()));
  if (!detail::write_default_config(path, options.mixed_precision, num_devices))
    return std::nullopt;
  return path;
}

}  // namespace accelerate
