#pragma once

#include <vector>

#include "planning/layout/layer_program.h"

namespace accelerate::detail {

/// Every layout that the options allow and the model's sizes divide, with any
/// micro-batch that powers of two divide.
std::vector<TrainingLayout> all_layouts(
    const ModelCosts& model,
    const LayoutPlanOptions& options);

/// Why a layout is none of that many ranks, or does not fit the model; empty if
/// it is one.
std::string layout_complaint(
    const ModelCosts& model,
    const TrainingLayout& layout,
    const LayoutPlanOptions& options);

/// Throws ConfigError for numbers that make no sense.
void check_options(const LayoutPlanOptions& options);

}  // namespace accelerate::detail
