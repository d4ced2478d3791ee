#pragma once

#include <optional>
#include <vector>

#include <accelerate/accelerator_options.h>
#include <accelerate/grad_scaler.h>
#include <accelerate/world.h>

#include "config/settings.h"
#include "engines/request/read_request.h"
#include "parallel/plan/plan.h"

namespace accelerate::detail {

/// The result of resolving the options, the launcher's and other engines'
/// settings.
struct Decisions {
  Precision precision = Precision::no;
  int window = 1;
  /// Set for fp16.
  std::optional<GradScaler> scaler;
  RequestSources request_sources;
  PlanRequest plan_request;
  ParallelPlan plan;
  /// The settings of code and launcher, and the choices where they leave
  /// something open.
  Settings settings;
  /// Settings that were given but have no effect.
  std::vector<IgnoredSetting> ignored;
};

/// Number of micro-steps per window: from the code, otherwise from the
/// launcher. Throws ConfigError if it is below 1, or if the code gives two
/// numbers.
int accumulation_window(
    const AcceleratorOptions& options,
    const Settings& settings);

/// Throws one ConfigError with everything that is wrong.
Decisions decide(
    const AcceleratorOptions& options,
    const std::vector<AddedTechnique>& added,
    const World& world,
    const Settings& settings,
    const Environment& environment);

}  // namespace accelerate::detail
