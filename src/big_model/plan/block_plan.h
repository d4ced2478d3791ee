#pragma once

#include <vector>

#include <accelerate/block_plan.h>

#include "big_model/plan/forward_timeline.h"
#include "modules/module_tree.h"

namespace accelerate::detail {

/// A model's blocks in tree order: layers, and the parameters and buffers of
/// modules that are not layers. Throws ConfigError for speeds that are not
/// positive.
std::vector<PlanBlock> plan_blocks(
    const ModuleNode& root,
    const PlanDeviceMapOptions& options);

/// The limits of a plan, from a map's limits.
PlanLimits plan_limits(const MaxMemory& max_memory);

/// plan_device_map() on a module tree. `options.max_memory` is what
/// normalised_memory() returned, not empty. Throws ConfigError if no placement
/// keeps the limits, saying what would.
PlannedDeviceMap plan_map(
    const ModuleNode& root,
    const PlanDeviceMapOptions& options);

}  // namespace accelerate::detail
