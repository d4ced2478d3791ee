#include <accelerate/big_model.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>
#include <accelerate/load_checkpoint.h>

#include "big_model/offload/checkpoint_plan.h"
#include "big_model/offload/weight_dtype.h"
#include "big_model/tiers/dispatch/dispatch_state.h"
#include "big_model/tiers/dispatch/dispatcher.h"
#include "checkpoint/load/destinations.h"
#include "checkpoint/weights/module_weights.h"

namespace accelerate {

namespace {

namespace fs = std::filesystem;

bool uses_disk(const DeviceMap& map) {
  const auto places = map.places();
  return std::ranges::any_of(
      places, [](const auto& place) { return place.is_disk(); });
}

// The device map to load with when the checkpoint's own files serve as the disk
// tier.
DeviceMap without_disk(const torch::nn::Module& module, const DeviceMap& map) {
  std::vector<std::pair<std::string, MapDevice>> entries;
  for (const Placement& each : map.placements())
    entries.emplace_back(
        each.name, each.device.is_disk() ? MapDevice("meta") : each.device);
  for (const auto& item : module.named_buffers()) {
    const auto place = map.device_of(item.key());
    if (place && place->is_disk() && !map.find(item.key()))
      entries.emplace_back(item.key(), "cpu");
  }
  return DeviceMap(entries);
}

// Dtypes after loading, so that the device map uses the loaded sizes.
std::vector<std::pair<std::string, std::string>> dtypes_of(
    const torch::nn::Module& module,
    const LoadAndDispatchOptions& options) {
  std::vector<std::pair<std::string, std::string>> dtypes;
  if (!options.dtype) return dtypes;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined() || !at::isFloatingType(tensor.scalar_type())) return;
    const bool is_kept = *options.dtype == at::kHalf &&
        detail::is_kept_in_fp32(name, options.keep_in_fp32_modules);
    dtypes.emplace_back(
        name, detail::dtype_name(is_kept ? at::kFloat : *options.dtype));
  };
  for (const auto& item : module.named_parameters())
    add(item.key(), item.value());
  for (const auto& item : module.named_buffers()) add(item.key(), item.value());
  return dtypes;
}

DeviceMap map_of(
    const torch::nn::Module& module,
    const LoadAndDispatchOptions& options) {
  if (const auto* const map = std::get_if<DeviceMap>(&options.device_map))
    return *map;
  return infer_auto_device_map(
      module,
      std::get<std::string>(options.device_map),
      {.max_memory = options.max_memory,
       .no_split_module_classes = options.no_split_module_classes,
       .special_dtypes = dtypes_of(module, options),
       .offload_buffers = options.offload_buffers});
}

LoadCheckpointOptions loading_of(
    const LoadAndDispatchOptions& options,
    DeviceMap map,
    bool offload_state_dict) {
  return {
      .device_map = std::move(map),
      .offload_folder = options.offload_folder,
      .strict_offload_folder = options.strict_offload_folder,
      .dtype = options.dtype,
      .offload_state_dict = offload_state_dict,
      .offload_buffers = options.offload_buffers,
      .keep_in_fp32_modules = options.keep_in_fp32_modules,
      .strict = options.strict,
      .full_state_dict = options.full_state_dict,
      .broadcast_from_rank0 = options.broadcast_from_rank0,
      .group = options.group,
      .map_weights = options.map_weights,
      .progress = options.progress,
      .skip = options.skip,
      .allow_missing = options.allow_missing,
      .rename = options.rename};
}

}  // namespace

Dispatch load_checkpoint_and_dispatch_module(
    torch::nn::Module& module,
    const fs::path& checkpoint,
    const LoadAndDispatchOptions& options) {
  const DeviceMap map = map_of(module, options);
  const bool has_disk = uses_disk(map);
  const bool reads_in_place = has_disk && options.offload_folder.empty();
  if (reads_in_place && options.broadcast_from_rank0) {
    throw ConfigError(
        "[big_model] the device map puts modules on the disk, but with "
        "broadcast_from_rank0 only rank 0 has the checkpoint: give each rank "
        "an offload_folder of its own");
  }
  if (!map.empty()) {
    check_device_map(module, map);
    // Throw before anything is loaded.
    static_cast<void>(detail::main_device_of(map, options.main_device));
  }
  load_checkpoint_in_model(
      module,
      checkpoint,
      loading_of(
          options,
          reads_in_place ? without_disk(module, map) : map,
          options.offload_state_dict.value_or(has_disk)));
  if (map.empty()) return {};
  const DispatchOptions dispatching{
      .device_map = map,
      .main_device = options.main_device,
      .offload_buffers = options.offload_buffers,
      .skip_keys = options.skip_keys,
      .preload_module_classes = options.preload_module_classes,
      .force_hooks = options.force_hooks};
  const detail::DispatchRequest request = detail::request_of(dispatching);
  detail::Dispatcher dispatcher(module, request, {});
  if (reads_in_place) {
    LoadModelOptions reading;
    reading.rename = options.rename;
    auto stored = detail::open_renamed(checkpoint, reading);
    std::erase_if(stored, [&](const auto& item) {
      return detail::matches_any(options.skip, item.first);
    });
    dispatcher.add_stored(std::move(stored));
  }
  dispatcher.use_disk(
      options.offload_folder, {}, options.strict_offload_folder);
  return Dispatch(
      dispatcher.run({.memory = detail::memory_of(options.prefetch_memory)}));
}

}  // namespace accelerate
