#pragma once

#include <array>
#include <string>
#include <vector>

#include <accelerate/parallel.h>

namespace accelerate::detail {

struct PlanRequest;

/// The number of ranks along each axis of the grid, by Axis.
using Degrees = std::array<int, kNumAxes>;

[[nodiscard]] inline int degree_along(const Degrees& degrees, Axis axis) {
  return degrees[static_cast<std::size_t>(axis)];
}

/// The degrees of the request, else 1; replicate, or shard if sharding was
/// asked for without a number, takes all ranks that the others leave. Adds what
/// is wrong with the degrees to `complaints`.
Degrees choose_degrees(
    const PlanRequest& request,
    std::vector<std::string>& complaints);

}  // namespace accelerate::detail
