#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <accelerate/block_plan.h>
#include <accelerate/device_map.h>
#include <accelerate/export.h>

namespace torch::nn {
class Module;
}

/// Sizes and device maps of a program's model. The model can be on the meta
/// device: only names, shapes, dtypes and classes count.
namespace accelerate {

/// Bytes of every module and tensor by dotted name; "" is the whole model. A
/// tied tensor counts where it comes first, and has no entry elsewhere. Throws
/// ConfigError for an unknown dtype.
[[nodiscard]] ACCELERATE_API std::map<std::string, double> compute_module_sizes(
    const torch::nn::Module& model,
    const ModuleSizesOptions& options = {});

/// Bytes of all buffers.
[[nodiscard]] ACCELERATE_API double compute_module_total_buffer_size(
    const torch::nn::Module& model,
    const ModuleSizesOptions& options = {});

/// The most and the least that must be in memory at once.
struct MaximumSizes {
  /// Bytes of all weights.
  double total_bytes = 0;
  /// Bytes of the largest layer, and the names of all layers of that size.
  double largest_layer_bytes = 0;
  /// Their names.
  std::vector<std::string> largest_layers;
};

/// Returns a model's total size and its largest layers. Layers are the modules
/// without children, and those of the given classes.
[[nodiscard]] ACCELERATE_API MaximumSizes calculate_maximum_sizes(
    const torch::nn::Module& model,
    const std::vector<std::string>& no_split_module_classes = {});

/// Names of the parameters that share one tensor, in sorted groups; empty
/// without ties.
[[nodiscard]] ACCELERATE_API std::vector<std::vector<std::string>>
find_tied_parameters(const torch::nn::Module& model);

/// Returns limits in the order in which devices are filled. If none are given:
/// what is free now on every accelerator device that responds, and what is
/// available in RAM, within the limit of the process's control group. With a
/// folder, which need not exist yet, also what is free on its disk, unless a
/// limit for "disk" is given. Warns about devices that this machine does not
/// have.
[[nodiscard]] ACCELERATE_API MaxMemory get_max_memory(
    const MaxMemory& max_memory = {},
    const std::filesystem::path& offload_folder = {});

/// Arguments of get_balanced_memory(), as in Accelerate.
struct GetBalancedMemoryOptions {
  /// See get_max_memory().
  MaxMemory max_memory = {};
  /// Classes whose modules are kept on one device.
  std::vector<std::string> no_split_module_classes = {};
  /// See ModuleSizesOptions.
  std::string dtype = {};
  /// Dtypes of tensors by name, where they differ.
  std::vector<std::pair<std::string, std::string>> special_dtypes = {};
  /// Puts as little as possible on the first device, which generation then
  /// uses.
  bool low_zero = false;
};

/// Returns limits for infer_auto_device_map() that spread a model evenly over
/// the accelerator devices, with a margin for what cannot be split.
[[nodiscard]] ACCELERATE_API MaxMemory get_balanced_memory(
    const torch::nn::Module& model,
    const GetBalancedMemoryOptions& options = {});

/// Infers a map that fills devices in order, then RAM, then the disk. The first
/// accelerator and the CPU keep room for the largest layer that is fetched to
/// them later; modules that share parameters stay together. Logs what the
/// caller should know. Throws ConfigError for an unknown dtype.
[[nodiscard]] ACCELERATE_API DeviceMap infer_auto_device_map(
    const torch::nn::Module& model,
    const InferAutoDeviceMapOptions& options = {});

/// Throws ConfigError if the map gives no place to a tensor of the state dict,
/// and warns about entries that name neither a module nor a tensor.
ACCELERATE_API void check_device_map(
    const torch::nn::Module& model,
    const DeviceMap& device_map);

/// Finds the map with the shortest predicted forward under the limits: blocks
/// that cannot be fetched while others compute stay resident. Uses dynamic
/// programming over the blocks, which is exact for up to 16 of them. Throws
/// ConfigError if no placement keeps the limits, naming what would suffice, and
/// for speeds that are not positive.
[[nodiscard]] ACCELERATE_API PlannedDeviceMap plan_device_map(
    const torch::nn::Module& model,
    const PlanDeviceMapOptions& options = {});

/// Measures this machine in about a second: matrix products and copies on the
/// first accelerator, or else on the CPU, copies from host memory, and reads,
/// bypassing the page cache, of a 64 MB file that is written to `folder` and
/// removed. Without a folder, the disk's speed is MachineSpeeds' default.
/// Throws Error if the file cannot be written.
[[nodiscard]] ACCELERATE_API MachineSpeeds
measure_speeds(const std::filesystem::path& folder = {});

}  // namespace accelerate
