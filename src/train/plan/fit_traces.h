#pragma once

#include <cstdint>
#include <optional>

#include "train/plan/step_trace.h"

namespace accelerate::detail {

/// Sizes as a fixed part and a part per sample, from a trace with `num_samples`
/// and one with twice as many. Nothing if they differ in more than sizes, except
/// for blocks that are taken and freed at once and are small, or no larger than
/// others of the same operator: kernels that work sample by sample take as many
/// as there are samples, and those that add on several threads take small ones
/// from some size on.
std::optional<StepTrace> fit_traces(
    const StepTrace& few,
    const StepTrace& more,
    std::int64_t num_samples);

}  // namespace accelerate::detail
