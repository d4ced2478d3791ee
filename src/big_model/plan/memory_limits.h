#pragma once

#include <string>
#include <vector>

#include <accelerate/device_map.h>

#include "modules/module_tree.h"

namespace accelerate::detail {

/// Limits in the order in which devices are filled. A device given twice has
/// the last of its limits.
MaxMemory normalised_memory(const MaxMemory& max_memory);

struct BalanceOptions {
  std::vector<std::string> no_split_module_classes = {};
  std::string dtype = {};
  std::vector<std::pair<std::string, std::string>> special_dtypes = {};
  /// Leaves the first device as little as possible, for generation with it.
  bool low_zero = false;
  /// Limits were measured, not given, so one device does not get all of it.
  bool is_measured = false;
};

/// Accelerate's get_balanced_memory: limits that spread a model evenly over the
/// accelerator devices. `max_memory` is what normalised_memory() returned.
MaxMemory balanced_memory(
    const ModuleNode& root,
    const MaxMemory& max_memory,
    const BalanceOptions& options);

}  // namespace accelerate::detail
