#pragma once

#include <vector>

#include "planning/layout/layer_program.h"

namespace accelerate::detail {

/// The layers of each pipeline stage (a rank's chunks are stages), chosen so
/// that the slowest stage is as fast as possible. One range without a pipeline.
std::vector<LayerRange> stages_of(const LayoutCase& of);

/// Simulates a step. Ranks of a stage do the same at the same time, so one of
/// them stands for all.
LayoutTimes simulate_step(const LayoutCase& of);

/// Estimates step_seconds by formula instead of simulation, to rank candidates.
double estimate_step(const LayoutCase& of);

}  // namespace accelerate::detail
