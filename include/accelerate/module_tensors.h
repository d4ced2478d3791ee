#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <accelerate/detail/handles.h>
#include <accelerate/device_map.h>
#include <accelerate/export.h>
#include <accelerate/weights.h>

/// Single tensors of a module: naming, replacing, sharing and moving them.
///
/// A module's members (`weight`) are handles to its registered tensors. So a
/// tensor is replaced in place, which every handle to it sees: members,
/// optimizers, and other modules that share it.
namespace accelerate {

struct NamedModuleTensorsOptions {
  /// Include buffers, after the parameters.
  bool include_buffers = true;
  /// Include tensors of modules below, by dotted names.
  bool recurse = false;
  /// Leave out those that get_non_persistent_buffers() names: none in C++. For
  /// programs ported from Python.
  bool remove_non_persistent = false;
};

/// A module's parameters, then its buffers, under their names in it; a tensor
/// with several names appears once. The tensors are the module's own, not
/// copies.
[[nodiscard]] ACCELERATE_API WeightList named_module_tensors(
    const torch::nn::Module& module,
    const NamedModuleTensorsOptions& options = {});

struct NonPersistentBuffersOptions {
  /// Include buffers of modules below.
  bool recurse = false;
  /// Return dotted names instead of their last parts.
  bool fqns = false;
};

/// Names of the buffers that are not part of a state dict. LibTorch registers
/// all buffers of C++ modules as part of it, so there are none: the function is
/// here for programs ported from Python.
[[nodiscard]] ACCELERATE_API std::vector<std::string>
get_non_persistent_buffers(
    const torch::nn::Module& module,
    const NonPersistentBuffersOptions& options = {});

/// Identifies memory: equal for tensors that share a storage.
struct TensorStorageId {
  /// Where the memory is.
  c10::Device device = c10::kCPU;
  /// Its address; null without memory.
  const void* data = nullptr;
  /// Its size.
  std::size_t num_bytes = 0;

  bool operator==(const TensorStorageId&) const = default;
};

/// The storage of a tensor. Tensors without memory (on the meta device) each
/// have their own.
[[nodiscard]] ACCELERATE_API TensorStorageId
id_tensor_storage(const at::Tensor& tensor);

/// Tensors already on a device, by the memory that they were copied from and by
/// device, so that tied weights are copied to each device once.
using TiedParamsMap =
    std::map<const void*, std::vector<std::pair<c10::Device, at::Tensor>>>;

struct SetModuleTensorOptions {
  /// New contents, of the same shape; the module shares their memory if they
  /// need no conversion. Undefined: the tensor keeps its own.
  at::Tensor value = {};
  /// The tensor's new dtype, for floating-point values; others keep their own.
  /// Unset: the tensor keeps its dtype. Has no effect without a value.
  std::optional<c10::ScalarType> dtype = std::nullopt;
  /// Copies to use instead of new ones; new copies of tensors that it names are
  /// added to it. For tied weights that are moved one by one.
  TiedParamsMap* tied_params_map = nullptr;
  /// Copies from pinned memory may still be in progress when the call returns:
  /// do not change the value before the device has finished them.
  bool non_blocking = false;
  /// Return unused memory to the system if the tensor leaves a device. To move
  /// many tensors, set it to false, and call clear_device_cache() once.
  bool clear_cache = true;
};

/// Moves a parameter or buffer to a device, with new contents if given; `name`
/// can be dotted. On the meta device it has no contents. A tensor that other
/// modules share changes for them as well; requires_grad stays. Throws
/// ConfigError for a name that is not a tensor's, another shape, a tensor
/// without contents that gets none, and a tensor that is offloaded or sharded.
ACCELERATE_API void set_module_tensor_to_device(
    torch::nn::Module& module,
    const std::string& name,
    c10::Device device,
    const SetModuleTensorOptions& options = {});

/// Makes the parameters of each group share the memory of the first one that
/// has some. Parameters that already are one tensor stay as they are. Throws
/// ConfigError for names that are not parameters, or different shapes or
/// dtypes.
ACCELERATE_API void retie_parameters(
    torch::nn::Module& module,
    const std::vector<std::vector<std::string>>& tied_params);

/// Warns if parameters of a group have different places in the map. Returns the
/// warning, which is empty if there is none.
ACCELERATE_API std::string check_tied_parameters_on_same_device(
    const std::vector<std::vector<std::string>>& tied_params,
    const DeviceMap& device_map);

/// While it lives, the module's own tensors are on `execution_device`, and
/// afterwards where they were; offloaded ones are fetched, and put back with
/// any changes. For code that reads or changes weights of an offloaded model.
/// Without a device, only offloaded tensors move: they are fetched to the
/// device that uses them. The module must outlive the scope; after a move of an
/// accelerator's tensors, operators on them are not recorded in a graph that
/// outlives the scope.
///
///     {
///       const accelerate::AlignModuleDevice aligned(*net->head, torch::kCPU);
///       net->head->weight.mul_(0.5);
///     }
class ACCELERATE_API AlignModuleDevice {
 public:
  explicit AlignModuleDevice(
      torch::nn::Module& module,
      std::optional<c10::Device> execution_device = std::nullopt);
  ~AlignModuleDevice();
  AlignModuleDevice(const AlignModuleDevice&) = delete;
  AlignModuleDevice& operator=(const AlignModuleDevice&) = delete;

 private:
  struct State;
  detail::OwnedPtr<State> state_;
};

/// Calls `function` inside such a scope and returns its result; Accelerate's
/// align_module_device.
template <class Function>
auto align_module_device(
    torch::nn::Module& module,
    std::optional<c10::Device> execution_device,
    Function&& function) {
  const AlignModuleDevice aligned(module, execution_device);
  return std::forward<Function>(function)();
}

/// Whether any of the module's own tensors is offloaded, and so fetched by
/// dispatch_model(), cpu_offload() or disk_offload() when it is needed.
[[nodiscard]] ACCELERATE_API bool has_offloaded_params(
    const torch::nn::Module& module);

/// Whether a device map with more than one entry offloads parts of the module,
/// or spreads it over several devices.
[[nodiscard]] ACCELERATE_API bool verify_device_map(
    const torch::nn::Module& module);

}  // namespace accelerate
