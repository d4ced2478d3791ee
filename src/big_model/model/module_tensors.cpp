#include <accelerate/module_tensors.h>

#include <unordered_set>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <accelerate/error.h>
#include <accelerate/log.h>
#include <accelerate/memory.h>

#include "base/text/text.h"
#include "big_model/model/module_tensor.h"
#include "big_model/model/offload_keeper.h"
#include "gate/gate_entry.h"

namespace accelerate {

namespace {

using detail::format;

void require_same_shape(
    const std::string& name,
    const at::Tensor& value,
    const at::Tensor& tensor) {
  if (value.sizes() == tensor.sizes()) return;
  throw ConfigError(format(
      "[big_model] a tensor of shape {} cannot be put in \"{}\", which has "
      "shape {}",
      value.sizes(),
      name,
      tensor.sizes()));
}

// The value on the device in its final dtype; the same tensor if it has both.
at::Tensor moved_value(
    const at::Tensor& value,
    c10::ScalarType dtype,
    c10::Device device,
    const SetModuleTensorOptions& options) {
  if (device.is_meta())
    return at::empty_like(value, value.options().dtype(dtype).device(device));
  TiedParamsMap* const tied = options.tied_params_map;
  const auto known = tied == nullptr || value.is_meta()
      ? TiedParamsMap::iterator()
      : tied->find(value.const_data_ptr());
  const bool is_tied =
      tied != nullptr && !value.is_meta() && known != tied->end();
  if (is_tied) {
    for (const auto& [place, copy] : known->second) {
      if (place == device && copy.scalar_type() == dtype) return copy;
    }
  }
  const at::Tensor moved = value.to(
      value.options().dtype(dtype).device(device), options.non_blocking);
  if (is_tied) known->second.emplace_back(device, moved);
  return moved;
}

}  // namespace

WeightList named_module_tensors(
    const torch::nn::Module& module,
    const NamedModuleTensorsOptions& options) {
  WeightList list;
  std::unordered_set<const void*> seen;
  const auto add = [&](const auto& items) {
    for (const auto& item : items) {
      if (item.value().defined() &&
          seen.insert(item.value().unsafeGetTensorImpl()).second) {
        list.emplace_back(item.key(), item.value());
      }
    }
  };
  add(module.named_parameters(options.recurse));
  if (options.include_buffers) add(module.named_buffers(options.recurse));
  return list;
}

std::vector<std::string> get_non_persistent_buffers(
    const torch::nn::Module&,
    const NonPersistentBuffersOptions&) {
  return {};
}

TensorStorageId id_tensor_storage(const at::Tensor& tensor) {
  if (tensor.is_meta() || !tensor.has_storage())
    return {tensor.device(), tensor.unsafeGetTensorImpl(), tensor.nbytes()};
  const c10::Storage& storage = tensor.storage();
  return {tensor.device(), storage.data(), storage.nbytes()};
}

void set_module_tensor_to_device(
    torch::nn::Module& module,
    const std::string& name,
    c10::Device device,
    const SetModuleTensorOptions& options) {
  const at::Tensor tensor = detail::require_module_tensor(module, name).tensor;
  if (detail::keeper_of(tensor) != nullptr) {
    throw ConfigError(format(
        "[big_model] \"{}\" is offloaded or sharded, so it cannot be replaced; "
        "change it inside an AlignModuleDevice or full_parameters()",
        name));
  }
  const at::Tensor& value = options.value;
  if (value.defined()) require_same_shape(name, value, tensor);
  if (tensor.is_meta() && !device.is_meta() && !value.defined()) {
    throw ConfigError(format(
        "[big_model] \"{}\" is on the meta device and has no contents to put "
        "on {}; pass a value",
        name,
        device.str()));
  }
  const at::NoGradGuard no_grad;
  const c10::Device before = tensor.device();
  c10::ScalarType dtype = tensor.scalar_type();
  if (value.defined() && options.dtype) {
    dtype = at::isFloatingType(value.scalar_type()) ? *options.dtype
                                                    : value.scalar_type();
  }
  const at::Tensor contents = value.defined() ? value : tensor.detach();
  const at::Tensor moved = moved_value(contents, dtype, device, options);
  if (!value.defined() && moved.is_same(contents)) return;
  detail::replace_in_place(tensor, moved.detach());
  if (options.clear_cache && before != device && !before.is_cpu() &&
      !before.is_meta()) {
    clear_device_cache();
  }
}

void retie_parameters(
    torch::nn::Module& module,
    const std::vector<std::vector<std::string>>& tied_params) {
  for (const std::vector<std::string>& group : tied_params) {
    std::vector<at::Tensor> tensors;
    at::Tensor shared;
    for (const std::string& name : group) {
      tensors.push_back(detail::require_module_tensor(module, name).tensor);
      if (!shared.defined() && !tensors.back().is_meta())
        shared = tensors.back();
    }
    if (!shared.defined()) continue;
    for (std::size_t i = 0; i < group.size(); ++i) {
      require_same_shape(group[i], shared, tensors[i]);
      if (!tensors[i].is_meta() &&
          tensors[i].scalar_type() != shared.scalar_type()) {
        throw ConfigError(format(
            "[big_model] \"{}\" must have the dtype of the parameters with "
            "which it is to share memory",
            group[i]));
      }
    }
    for (const at::Tensor& tensor : tensors) {
      if (!tensor.is_same(shared) && detail::keeper_of(tensor) == nullptr)
        detail::replace_in_place(tensor, shared.detach());
    }
  }
}

std::string check_tied_parameters_on_same_device(
    const std::vector<std::vector<std::string>>& tied_params,
    const DeviceMap& device_map) {
  std::vector<std::string> warnings;
  for (const std::vector<std::string>& group : tied_params) {
    std::vector<std::string> places;
    std::optional<MapDevice> first;
    bool is_split = false;
    for (const std::string& name : group) {
      const auto place = device_map.device_of(name);
      if (!place) continue;
      is_split = is_split || (first && *first != *place);
      if (!first) first = place;
      places.push_back(format("{} on {}", name, place->name()));
    }
    if (is_split) warnings.push_back(detail::join(places, ", "));
  }
  if (warnings.empty()) return {};
  std::string warning = format(
      "tied parameters are on different devices: {}; give them the same place "
      "in the device map, or use \"auto\"",
      detail::join(warnings, "; "));
  Logger().log(LogLevel::warning, "big_model", warning);
  return warning;
}

}  // namespace accelerate
