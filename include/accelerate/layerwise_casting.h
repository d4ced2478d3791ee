#pragma once

#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include <accelerate/export.h>

namespace torch::nn {
class Module;
}

namespace accelerate {

struct LayerwiseCastingOptions {
  /// Modules whose dotted name contains a match of one of these regular
  /// expressions (ECMAScript) are left alone, with everything below them.
  std::vector<std::string> skip_modules_pattern = {};
  /// Modules of these classes are left alone likewise: "LayerNorm", "BlockImpl"
  /// or "models::BlockImpl".
  std::vector<std::string> skip_modules_classes = {};
  /// Casts may still be in progress when the host continues, as they always may
  /// on CUDA devices.
  bool non_blocking = false;
};

/// Keeps the weights of linear and convolution layers in one dtype, such as
/// float8_e4m3fn or bfloat16, and computes with them in another: each is cast
/// for the operator that takes it, and the cast copy freed afterwards. This
/// call changes the dtype of weights; inputs are not cast, so they should be of
/// `compute_dtype`. Layers: Linear, Conv1d to 3d, ConvTranspose1d to 3d, and
/// classes derived from them. Removed by remove_hook_from_submodules(), after
/// which weights still have the storage dtype. Throws ConfigError for dtypes
/// that are not floating-point, invalid expressions, and layers that cannot
/// have hooks (add_hook_to_module()).
ACCELERATE_API void attach_layerwise_casting_hooks(
    torch::nn::Module& module,
    c10::ScalarType storage_dtype,
    c10::ScalarType compute_dtype,
    const LayerwiseCastingOptions& options = {});

}  // namespace accelerate
