#pragma once

#include <string>
#include <string_view>

#include <accelerate/planning.h>

namespace accelerate::detail {

/// The value of the setting mixed_precision for this precision.
std::string_view mixed_precision_of(FloatType precision);

/// A layout as a config file for `accelerate-cpp launch`.
std::string layout_config(
    const TrainingLayout& layout,
    const LayoutPlanOptions& options);

}  // namespace accelerate::detail
