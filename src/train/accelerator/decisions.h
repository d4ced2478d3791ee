#pragma once

#include <vector>

#include <accelerate/accelerator_options.h>
#include <accelerate/world.h>

#include "config/settings.h"
#include "engines/read_request.h"
#include "parallel/plan.h"

namespace accelerate::detail {

/// What the options, the launcher and other engines' settings resolve to.
struct Decisions {
  Precision precision = Precision::no;
  int window = 1;
  RequestSources request_sources;
  PlanRequest plan_request;
  ParallelPlan plan;
};

/// Throws one ConfigError with everything that is wrong.
Decisions decide(
    const AcceleratorOptions& options,
    const std::vector<AddedTechnique>& added,
    const World& world,
    const Settings& settings,
    const Environment& environment);

/// The precision that code and launcher ask for, which an engine may change.
Precision requested_precision(
    const AcceleratorOptions& options,
    const Settings& settings);

}  // namespace accelerate::detail
