#include <algorithm>

#include <accelerate/device_map.h>
#include <accelerate/error.h>

#include "big_model/plan/device_map_inference.h"
#include "big_model/plan/memory_limits.h"
#include "big_model/plan/sized_tree.h"
#include "oracle/departures.h"
#include "oracle/module_trees.h"
#include "oracle/oracle.h"
#include "support/child_layers.h"

namespace accelerate::oracle {

namespace topic_device_map {

using detail::ModuleNode;

Json device_json(const MapDevice& device) {
  if (const auto index = device.index()) return *index;
  return device.name();
}

MaxMemory memory_of(const Json& pairs) {
  MaxMemory memory;
  for (const Json& pair : pairs) {
    const MapDevice device = pair[0].is_number()
        ? MapDevice(pair[0].get<int>())
        : MapDevice(pair[0].get<std::string>());
    const ByteSize size = pair[1].is_number()
        ? ByteSize(pair[1].get<std::int64_t>())
        : ByteSize(pair[1].get<std::string>());
    memory.emplace_back(device, size);
  }
  return detail::normalised_memory(memory);
}

InferAutoDeviceMapOptions options_of(const Json& input) {
  InferAutoDeviceMapOptions options;
  if (!input.at("no_split_module_classes").is_null())
    input.at("no_split_module_classes").get_to(options.no_split_module_classes);
  if (!input.at("dtype").is_null()) options.dtype = input.at("dtype");
  if (!input.at("special_dtypes").is_null())
    input.at("special_dtypes").get_to(options.special_dtypes);
  options.offload_buffers = input.at("offload_buffers");
  options.fallback_allocation = input.at("fallback_allocation");
  options.clean_result = input.at("clean_result");
  return options;
}

template <class Function>
Json or_error(Function&& function) {
  try {
    return function();
  } catch (const ConfigError& error) {
    return {{"error", error.what()}};
  }
}

Json map_json(
    const ModuleNode& root,
    InferAutoDeviceMapOptions options,
    MaxMemory max_memory) {
  options.max_memory = std::move(max_memory);
  const DeviceMap map = detail::infer_device_map(root, options);
  Json pairs = Json::array();
  for (const Placement& each : map.placements())
    pairs.push_back({each.name, device_json(each.device)});
  Json warnings = Json::array();
  for (const std::string& warning : map.warnings()) {
    const bool is_known = warning.find("offload_buffers") != warning.npos;
    warnings.push_back(is_known ? "buffers_do_not_fit" : warning);
  }
  return {{"map", std::move(pairs)}, {"warnings", std::move(warnings)}};
}

Json sizes_json(const detail::ModuleSizes& sizes) {
  Json pairs = Json::array();
  for (const auto& [name, bytes] : sizes) pairs.push_back({name, bytes});
  return pairs;
}

Json sorted(Json list) {
  std::sort(list.begin(), list.end());
  return list;
}

// If both lists have the same elements, gives the recorded one, which has the
// order of a Python set or map, the order found.
bool take_order(const Json& found, Json& expected) {
  if (!found.is_array() || !expected.is_array() || found == expected ||
      sorted(found) != sorted(expected)) {
    return false;
  }
  expected = found;
  return true;
}

bool order_of_sets(const Json&, const Json& found, Json& expected) {
  bool applied = false;
  for (const char* key : {"tied_parameters", "module_sizes"})
    applied = take_order(found.at(key), expected.at(key)) || applied;
  for (const char* key : {"device_map", "balanced_device_map"}) {
    if (found.at(key).contains("map") && expected.at(key).contains("map")) {
      applied =
          take_order(found[key].at("map"), expected[key]["map"]) || applied;
    }
  }
  return applied;
}

bool fields_not_recorded(const Json&, const Json& found, Json& expected) {
  bool applied = false;
  for (const char* key :
       {"device_map", "balanced_memory", "balanced_device_map"}) {
    if (!expected.at(key).is_null()) continue;
    expected[key] = found.at(key);
    applied = true;
  }
  return applied;
}

}  // namespace topic_device_map

Departures device_map_departures() {
  using namespace topic_device_map;
  return Departures(
      {},
      {{"entries that were merged, and groups of ties, are in the order of the "
        "model, not in that of a Python set",
        order_of_sets},
       {"fields that the recording leaves out", fields_not_recorded}});
}

Json run_device_map(const Json& input) {
  using namespace topic_device_map;
  const ModuleNode root = module_tree_of(input.at("module"), input.at("tied"));
  const InferAutoDeviceMapOptions options = options_of(input);
  ModuleSizesOptions sizes{options.dtype, options.special_dtypes};
  const auto largest = testing::largest_child_layer(
      root, sizes, options.no_split_module_classes);
  const auto limits = [&] { return memory_of(input.at("max_memory")); };
  const auto balanced = [&] {
    return detail::balanced_memory(
        root,
        limits(),
        {options.no_split_module_classes,
         options.dtype,
         options.special_dtypes,
         input.at("low_zero").get<bool>()});
  };
  const auto balanced_json = [&] {
    Json pairs = Json::array();
    for (const auto& [device, size] : balanced())
      pairs.push_back({device_json(device), size.bytes()});
    return pairs;
  };
  Json found{
      {"module_sizes", sizes_json(detail::module_sizes(root, sizes))},
      {"max_layer", {largest.num_bytes, largest.names}},
      {"tied_parameters", detail::tied_parameters(root)},
      {"device_map",
       or_error([&] { return map_json(root, options, limits()); })},
      {"balanced_memory", or_error(balanced_json)},
      {"balanced_device_map",
       or_error([&] { return map_json(root, options, balanced()); })}};
  sizes.buffers_only = true;
  found["buffer_size"] = detail::total_module_size(root, sizes);
  return found;
}

}  // namespace accelerate::oracle
