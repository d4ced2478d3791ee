#include "pipeline/automatic_split.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "big_model/plan/device_map_inference.h"
#include "big_model/plan/memory_limits.h"
#include "big_model/plan/sized_tree.h"
#include "params/model_modules.h"
#include "pipeline/split.h"
#include "pipeline/stages.h"

namespace accelerate::detail {

std::vector<std::string> layer_names(const PipelineLayers& layers) {
  std::vector<std::string> names;
  for (const auto& layer : layers.layers()) names.push_back(layer.name);
  return names;
}

std::vector<std::string> automatic_split(
    const PipelineLayers& layers,
    std::vector<std::string> no_split_module_classes,
    int num_ranks) {
  for (const auto& layer : layers.layers()) {
    for (const auto& [name, module] : layer.modules)
      no_split_module_classes.push_back(module->name());
  }
  const auto whole = make_whole_module(layers.layers());
  const auto split = split_by_device_map(
      module_tree(*whole), num_ranks, no_split_module_classes);
  const auto names = layer_names(layers);
  std::vector<std::string> points;
  auto after = names.begin();
  for (const auto& point : split.points) {
    if (!point || after == names.end()) break;
    after = std::find(after + 1, names.end(), *point);
    if (after != names.end()) points.push_back(*point);
  }
  if (points.size() + 1 == static_cast<std::size_t>(num_ranks)) return points;
  points.clear();
  const auto begins =
      divide_layers(names, {}, parameter_bytes(layers.layers()), num_ranks);
  for (std::size_t i = 1; i < begins.size(); ++i)
    points.push_back(names[begins[i]]);
  return points;
}

namespace {

// The share of each stage, in bytes.
std::int64_t memory_of_stage(const ModuleNode& root, int num_stages) {
  const double total = total_module_size(root, {});
  const double largest = largest_layer(root, {}, {}).num_bytes;
  return static_cast<std::int64_t>(
      std::floor(1.1 * std::ceil((total + largest) / num_stages)));
}

}  // namespace

DeviceMapSplit split_by_device_map(
    const ModuleNode& root,
    int num_stages,
    const std::vector<std::string>& no_split_module_classes) {
  InferAutoDeviceMapOptions options;
  options.no_split_module_classes = no_split_module_classes;
  options.clean_result = false;
  MaxMemory memory;
  if (num_stages == 1) {
    memory.emplace_back(
        MapDevice("cpu"),
        ByteSize(std::numeric_limits<std::int64_t>::max() / 2));
  } else {
    const std::int64_t share = memory_of_stage(root, num_stages);
    for (int stage = 0; stage < num_stages; ++stage)
      memory.emplace_back(MapDevice(stage), ByteSize(share));
  }
  options.max_memory = normalised_memory(memory);
  DeviceMapSplit split{infer_device_map(root, options), {}};
  for (int stage = 1; stage < num_stages; ++stage) {
    std::optional<std::string>& point = split.points.emplace_back();
    for (const Placement& each : split.map.placements()) {
      if (each.device.index() != stage) continue;
      point = each.name;
      break;
    }
  }
  return split;
}

}  // namespace accelerate::detail
