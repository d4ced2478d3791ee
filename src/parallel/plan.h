#pragma once

#include <memory>
#include <vector>

#include <accelerate/parallel.h>

#include "config/settings.h"
#include "parallel/strategy.h"

namespace accelerate::detail {

/// Degrees of every axis: from `options`, else from the launcher, else 1, with
/// replicate taking all ranks that the rest leave. Runs every technique's
/// validation; throws one ConfigError with all complaints, touching nothing.
std::array<int, kNumAxes> plan_degrees(
    const ParallelOptions& options,
    const Settings& settings,
    int world_size);

/// The techniques that the mesh asks for, in order of application, for one
/// model.
std::vector<std::unique_ptr<Strategy>> make_strategies(
    const Mesh& mesh,
    const ParallelOptions& options);

}  // namespace accelerate::detail
