#pragma once

#include <string>
#include <vector>

#include <accelerate/device_map.h>

#include "modules/module_tree.h"

namespace accelerate::detail {

/// Limits in the order in which devices are filled. If a device is given twice,
/// its last limit counts.
MaxMemory normalised_memory(const MaxMemory& max_memory);

struct BalanceOptions {
  std::vector<std::string> no_split_module_classes = {};
  std::string dtype = {};
  std::vector<std::pair<std::string, std::string>> special_dtypes = {};
  /// Leaves the first device as empty as possible, to be used for generation.
  bool low_zero = false;
  /// Limits were measured, not given, so a single device does not get
  /// everything.
  bool is_measured = false;
};

/// Accelerate's get_balanced_memory: limits that spread a model evenly over the
/// accelerators. `max_memory` is what normalised_memory() returned.
MaxMemory balanced_memory(
    const ModuleNode& root,
    const MaxMemory& max_memory,
    const BalanceOptions& options);

}  // namespace accelerate::detail
