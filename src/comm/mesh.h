#pragma once

#include <array>
#include <optional>
#include <string>

#include <accelerate/parallel.h>

namespace accelerate::detail {

/// Why the degrees do not fit the number of ranks, and the way out; nothing if
/// they do.
std::optional<std::string> mesh_complaint(
    const std::array<int, kNumAxes>& degrees,
    int world_size);

}  // namespace accelerate::detail
