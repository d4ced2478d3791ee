#pragma once

#include <array>
#include <string>
#include <vector>

#include <accelerate/parallel.h>

namespace accelerate::detail {

struct PlanRequest;

/// The number of ranks along each axis of the grid, indexed by Axis.
using Degrees = std::array<int, kNumAxes>;

[[nodiscard]] inline int degree_along(const Degrees& degrees, Axis axis) {
  return degrees[static_cast<std::size_t>(axis)];
}

/// Returns the requested degrees, 1 by default; replicate, or shard if sharding
/// was requested without a number, takes all remaining ranks. Adds what is
/// wrong with the degrees to `complaints`.
Degrees choose_degrees(
    const PlanRequest& request,
    std::vector<std::string>& complaints);

}  // namespace accelerate::detail
