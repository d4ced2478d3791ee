#include "pipeline/automatic_split.h"

#include <algorithm>

#include "params/model_modules.h"
#include "pipeline/device_map.h"
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

}  // namespace accelerate::detail
