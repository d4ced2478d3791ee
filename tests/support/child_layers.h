#pragma once

#include <string>
#include <vector>

#include "big_model/plan/sized_tree.h"

namespace accelerate::testing {

/// The largest layers among the root's children, as Accelerate's
/// calculate_maximum_sizes finds them.
inline detail::LargestLayerNames largest_child_layer(
    const detail::ModuleNode& root,
    const ModuleSizesOptions& sizes,
    const std::vector<std::string>& no_split_module_classes) {
  const detail::SizedTree tree(root, sizes, no_split_module_classes);
  std::vector<int> children = tree.parts(0);
  std::erase_if(children, [&](int node) { return !tree.is_module(node); });
  const detail::LargestLayer largest = tree.largest_layer(children);
  detail::LargestLayerNames layer{largest.num_bytes, {}};
  for (const int node : largest.nodes)
    layer.names.push_back(tree.name_of(node));
  return layer;
}

}  // namespace accelerate::testing
