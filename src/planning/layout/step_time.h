#pragma once

#include <vector>

#include "planning/layout/layer_program.h"

namespace accelerate::detail {

/// The layers of each stage of a pipeline (chunks of a rank included), so that
/// the slowest is as fast as possible. One for a model that is not divided.
std::vector<LayerRange> stages_of(const LayoutCase& of);

/// Simulates a step. The ranks that differ along other axes than `pipeline` do
/// the same at the same time, so one of each stage stands for all.
LayoutTimes simulate_step(const LayoutCase& of);

/// Roughly step_seconds, by formulas instead of a simulation: to rank candidates.
double estimate_step(const LayoutCase& of);

}  // namespace accelerate::detail
