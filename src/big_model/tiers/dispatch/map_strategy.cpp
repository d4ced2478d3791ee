#include <accelerate/big_model.h>
#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate {

DeviceMap infer_auto_device_map(
    const torch::nn::Module& model,
    const std::string& strategy,
    InferAutoDeviceMapOptions options) {
  const bool low_zero = strategy == "balanced_low_0";
  if (strategy == "auto" || strategy == "balanced" || low_zero) {
    options.max_memory = get_balanced_memory(
        model,
        {.max_memory = options.max_memory,
         .no_split_module_classes = options.no_split_module_classes,
         .dtype = options.dtype,
         .special_dtypes = options.special_dtypes,
         .low_zero = low_zero});
  } else if (strategy != "sequential") {
    throw ConfigError(detail::format(
        "[big_model] a strategy for a device map must be auto, balanced, "
        "balanced_low_0 or sequential, but is \"{}\"",
        detail::printable(strategy)));
  }
  return infer_auto_device_map(model, options);
}

}  // namespace accelerate
