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

/// What decides besides the mesh.
struct TechniqueOptions {
  ParallelOptions parallel = {};
  bool master_weights = false;
};

/// The techniques that mesh and options ask for, in order of application, for
/// one model.
std::vector<std::unique_ptr<Strategy>> make_strategies(
    const Mesh& mesh,
    const TechniqueOptions& options);

}  // namespace accelerate::detail
