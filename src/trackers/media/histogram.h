#pragma once

#include <cstdint>
#include <span>

#include <accelerate/tracker.h>

namespace accelerate::detail {

/// Counts the finite values in bins of equal width between the least and the
/// largest; if all are equal, the edges surround them. Without finite values,
/// all counts are 0. `num_bins` must be at least 1.
TrackedHistogram histogram_of(
    std::span<const double> values,
    std::int64_t num_bins);

}  // namespace accelerate::detail
