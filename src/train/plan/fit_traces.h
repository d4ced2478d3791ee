#pragma once

#include <cstdint>
#include <optional>

#include "train/plan/step_trace.h"

namespace accelerate::detail {

/// Splits sizes into a fixed part and a part per sample, from a trace with
/// `num_samples` and one with twice as many. Returns nullopt if they differ in
/// more than sizes. Ignores blocks that are freed at once and are small, or no
/// larger than others of the same operator: kernels that work sample by sample
/// take one block per sample, and kernels that sum on several threads take
/// small blocks above some size.
std::optional<StepTrace> fit_traces(
    const StepTrace& few,
    const StepTrace& more,
    std::int64_t num_samples);

/// Bytes that blocks need at the same time with this number of samples.
double peak_bytes(const StepTrace& trace, std::int64_t samples);

/// True if an operator frees at once a block that grows with the samples and is
/// large with this number of them.
bool has_large_scratch(const StepTrace& trace, std::int64_t samples);

/// Lets blocks that are freed at once grow as in `of_many`, a trace that was
/// fitted to more samples, where they grow less there. Does nothing if the
/// traces differ in more than sizes.
void limit_scratch(StepTrace& trace, const StepTrace& of_many);

}  // namespace accelerate::detail
