#pragma once

#include <cstdint>

#include <accelerate/planning.h>

namespace accelerate::detail {

/// What the options of a plan, whose cluster is set, amount to.

/// Samples of a step, of all ranks: at least one, and whole ones only.
std::int64_t samples_of_step(const LayoutPlanOptions& options);

/// Tokens of those samples.
double tokens_of_step(const LayoutPlanOptions& options);

/// Bytes of each rank's memory that a layout may need.
std::uint64_t usable_bytes(const LayoutPlanOptions& options);

/// Operations per second of products in the precision of the plan.
double product_speed(const LayoutPlanOptions& options);

}  // namespace accelerate::detail
