#pragma once

#include <cstdint>

#include <accelerate/planning.h>

namespace accelerate::detail {

// Values derived from the options of a plan. The cluster must be set.

/// Samples per step over all ranks, rounded down; at least one.
std::int64_t samples_of_step(const LayoutPlanOptions& options);

/// Tokens in those samples.
double tokens_of_step(const LayoutPlanOptions& options);

/// Bytes of each rank's memory that a layout may use.
std::uint64_t usable_bytes(const LayoutPlanOptions& options);

/// Operations per second of matrix products in the precision of the plan.
double product_speed(const LayoutPlanOptions& options);

}  // namespace accelerate::detail
