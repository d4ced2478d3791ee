#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <accelerate/device_map.h>

#include "big_model/tiers/keeper/resident_units.h"
#include "gate/coded_weights.h"

namespace torch::nn {
class Module;
}

namespace accelerate::detail {

/// Settings of a dispatch.
struct DispatchRequest {
  const DeviceMap* device_map = nullptr;
  c10::Device main_device = c10::kCPU;
  /// Fetches weights placed on "cpu" to the main device instead of using them
  /// in place, even if the main device is the CPU.
  bool offloads_host = false;
  bool offload_buffers = false;
  std::vector<std::string> preload_module_classes = {};
  /// Keys of forward arguments that are not moved.
  std::vector<std::string> skip_keys = {};
  /// Treats all tensors as one unit.
  bool is_one_unit = false;
};

/// A quantized parameter and the place of its codes.
struct PlannedCodes {
  at::Tensor parameter;
  CodedUnit codes = {};
  c10::Device device = c10::kCPU;
  /// Names of the layers that hold the parameter, with a trailing dot unless
  /// empty.
  std::vector<std::string> layers;
  /// Indices of its parts among the kept tensors; empty if it stays on the
  /// device.
  std::vector<std::size_t> kept = {};
  bool is_on_disk = false;
};

/// Where each of a module's tensors goes.
struct DispatchPlan {
  /// Tensors that move to a device and stay there.
  std::vector<std::pair<at::Tensor, c10::Device>> resident;
  KeptWeights kept;
  /// All names of each resident and each kept tensor, respectively.
  std::vector<std::vector<std::string>> resident_names;
  std::vector<std::vector<std::string>> kept_names;
  /// Whether each of `kept.tensors` comes from disk.
  std::vector<bool> is_on_disk;
  /// Whether each of `kept.tensors` is a part of a quantized weight.
  std::vector<bool> is_code;
  /// Quantized parameters, which are placed through their codes.
  std::vector<PlannedCodes> codes;
  /// Whether operators receive tensors on several devices.
  bool has_several_devices = false;
};

/// Plans a dispatch. A tensor with several names goes to the place nearest to
/// the accelerator. Throws ConfigError like dispatch_model().
DispatchPlan plan_dispatch(
    const torch::nn::Module& module,
    const DispatchRequest& request);

/// Finds stored weights by name.
class StoredWeights {
 public:
  void add(StoredTensors tensors);
  /// Adds the entries of an index whose .dat files are in `folder`.
  void add(const OffloadIndex& index, const std::filesystem::path& folder);
  /// Returns the tensor stored under the first of these names that has one;
  /// null if none has.
  [[nodiscard]] std::shared_ptr<const StoredTensor> find(
      const std::vector<std::string>& names) const;

 private:
  std::map<std::string, std::shared_ptr<const StoredTensor>> tensors_;
};

}  // namespace accelerate::detail
