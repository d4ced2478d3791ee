#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <accelerate/device_map.h>

#include "big_model/model/coded_weights.h"
#include "big_model/tiers/keeper/tier_keeper.h"

namespace torch::nn {
class Module;
}

namespace accelerate::detail {

/// How a module is dispatched.
struct DispatchRequest {
  const DeviceMap* device_map = nullptr;
  c10::Device main_device = c10::kCPU;
  /// Weights of "cpu" are fetched to the main device, instead of being used
  /// where they are. For the main device CPU, too.
  bool offloads_host = false;
  bool offload_buffers = false;
  std::vector<std::string> preload_module_classes = {};
  /// Keys among a forward's arguments that stay where they are.
  std::vector<std::string> skip_keys = {};
  /// All tensors are one unit.
  bool is_one_unit = false;
};

/// A parameter that is held as codes, and where those go.
struct PlannedCodes {
  at::Tensor parameter;
  CodedUnit codes = {};
  c10::Device device = c10::kCPU;
  /// Names of the layers that have it, with a dot at the end unless empty.
  std::vector<std::string> layers;
  /// Those among the kept tensors that are its parts; none if it stays on the
  /// device.
  std::vector<std::size_t> kept = {};
  bool is_on_disk = false;
};

/// What becomes of a module's tensors.
struct DispatchPlan {
  /// Tensors that move to a device and stay there.
  std::vector<std::pair<at::Tensor, c10::Device>> resident;
  KeptWeights kept;
  /// All names of each resident and each kept tensor.
  std::vector<std::vector<std::string>> resident_names;
  std::vector<std::vector<std::string>> kept_names;
  /// Whether each of `kept.tensors` comes from disk.
  std::vector<bool> is_on_disk;
  /// Whether it is a part of a weight that is held as codes.
  std::vector<bool> is_code;
  /// What is neither resident nor kept itself, but through its codes.
  std::vector<PlannedCodes> codes;
  /// Whether operators have tensors on several devices.
  bool has_several_devices = false;
};

/// Throws ConfigError as dispatch_model(). A tensor with several names is where
/// the nearest of their places is.
DispatchPlan plan_dispatch(
    const torch::nn::Module& module,
    const DispatchRequest& request);

/// Finds where offloaded weights are stored, by name.
class StoredWeights {
 public:
  void add(StoredTensors tensors);
  /// Entries of an index, whose .dat files are in `folder`.
  void add(const OffloadIndex& index, const std::filesystem::path& folder);
  /// The tensor of the first of these names that has one; null if none has.
  [[nodiscard]] std::shared_ptr<const StoredTensor> find(
      const std::vector<std::string>& names) const;

 private:
  std::map<std::string, std::shared_ptr<const StoredTensor>> tensors_;
};

}  // namespace accelerate::detail
