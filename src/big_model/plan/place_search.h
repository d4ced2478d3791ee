#pragma once

#include <optional>
#include <vector>

#include "big_model/plan/forward_timeline.h"

namespace accelerate::detail {

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
