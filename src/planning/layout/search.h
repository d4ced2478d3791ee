#pragma once

#include <vector>

#include "planning/layout/layer_program.h"

namespace accelerate::detail {

/// Every layout that the options allow and that divides the model's sizes, with
/// micro-batches that are powers of two or a rank's whole batch.
std::vector<TrainingLayout> all_layouts(
    const ModelCosts& model,
    const LayoutPlanOptions& options);

/// Why a layout does not match the number of ranks or the model; empty if it is
/// valid.
std::string layout_complaint(
    const ModelCosts& model,
    const TrainingLayout& layout,
    const LayoutPlanOptions& options);

/// Throws ConfigError for invalid numbers.
void check_options(const LayoutPlanOptions& options);

}  // namespace accelerate::detail
