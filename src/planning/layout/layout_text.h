#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <accelerate/planning.h>

namespace accelerate::detail {

/// The text of LayoutPlan::explain().
std::string explain_plan(
    const TransformerShape& shape,
    const LayoutPlanOptions& options,
    const std::vector<PlannedLayout>& fitting,
    const std::vector<PlannedLayout>& not_fitting,
    std::size_t num_considered,
    std::size_t max_layouts);

/// Where the time of a step goes, one part per line, the longest first.
std::string times_text(const LayoutTimes& times);

/// "1.25 s", "310 ms", "45 us".
std::string seconds_text(double seconds);

/// Model FLOPs utilization of a step, relative to the speed of products;
/// recomputation does not count.
double utilization(
    const TransformerShape& shape,
    const LayoutPlanOptions& options,
    const LayoutTimes& times);

/// The value of the setting mixed_precision for this precision.
std::string_view mixed_precision_of(FloatType precision);

/// A layout as a config file for `accelerate-cpp launch`.
std::string layout_config(
    const TrainingLayout& layout,
    const LayoutPlanOptions& options);

}  // namespace accelerate::detail
