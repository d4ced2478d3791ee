#include "big_model/plan/module_sizes.h"

#include "big_model/plan/sized_tree.h"

namespace accelerate::detail {

ModuleSizes module_sizes(
    const ModuleNode& root,
    const ModuleSizesOptions& options) {
  const SizedTree tree(root, options);
  ModuleSizes sizes;
  for (int i = 0; i < tree.size(); ++i) {
    if (tree[i].has_tensors) sizes.emplace(tree.name_of(i), tree[i].num_bytes);
  }
  return sizes;
}

double total_module_size(
    const ModuleNode& root,
    const ModuleSizesOptions& options) {
  return SizedTree(root, options)[0].num_bytes;
}

LargestLayerNames largest_layer(
    const ModuleNode& root,
    const ModuleSizesOptions& sizes,
    const std::vector<std::string>& no_split_module_classes) {
  const SizedTree tree(root, sizes, no_split_module_classes);
  const LargestLayer largest = tree.largest_layer(tree.items());
  LargestLayerNames layer{largest.num_bytes, {}};
  for (const int node : largest.nodes)
    layer.names.push_back(tree.name_of(node));
  return layer;
}

}  // namespace accelerate::detail
