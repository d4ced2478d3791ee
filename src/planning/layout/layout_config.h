#pragma once

#include <string>
#include <string_view>

#include <accelerate/planning.h>

namespace accelerate::detail {

/// As the setting mixed_precision spells it.
std::string_view mixed_precision_of(FloatType precision);

/// A layout as a config file of `accelerate-cpp launch`.
std::string layout_config(
    const TrainingLayout& layout,
    const LayoutPlanOptions& options);

}  // namespace accelerate::detail
