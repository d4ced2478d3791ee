#pragma once

#include <optional>
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

/// The places within the limits with the fastest forward; nothing if no places
/// keep the limits.
///
/// Dynamic programming over the blocks: among the placements of the first k
/// blocks, only those are kept that no other one matches in time, buffers and
/// memory (a Pareto frontier), and that may still beat the best known solution.
/// Exact for up to 16 blocks; beyond that, frontiers are limited to the most
/// promising placements, so that the search stays short. Tries each block's
/// size as the size of the buffers, or 16 of them.
std::optional<std::vector<BlockPlace>> find_places(
    const std::vector<PlanBlock>& blocks,
    const PlanLimits& limits,
    const MachineSpeeds& speeds);

}  // namespace accelerate::detail
