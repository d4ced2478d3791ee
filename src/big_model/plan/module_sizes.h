#pragma once

#include <map>
#include <string>
#include <vector>

#include <accelerate/device_map.h>

#include "modules/module_tree.h"

namespace accelerate::detail {

/// Bytes of every module and tensor by dotted name; "" is the whole model. A
/// tied tensor counts where it comes first, and has no entry elsewhere.
using ModuleSizes = std::map<std::string, double>;

/// Accelerate's compute_module_sizes on a module tree.
ModuleSizes module_sizes(
    const ModuleNode& root,
    const ModuleSizesOptions& options);

/// The entry "" of these sizes; 0 if there are no tensors.
double total_module_size(
    const ModuleNode& root,
    const ModuleSizesOptions& options);

/// The largest layers by name: modules without children, and modules of the
/// given classes.
struct LargestLayerNames {
  double num_bytes = 0;
  std::vector<std::string> names;
};
/// Among the root's children and its own tensors.
LargestLayerNames largest_layer(
    const ModuleNode& root,
    const ModuleSizesOptions& sizes,
    const std::vector<std::string>& no_split_module_classes);

}  // namespace accelerate::detail
