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

/// What the options, the launcher and other engines' settings resolve to.
struct Decisions {
  Precision precision = Precision::no;
  int window = 1;
  /// Set for fp16.
  std::optional<GradScaler> scaler;
  RequestSources request_sources;
  PlanRequest plan_request;
  ParallelPlan plan;
  /// What code and launcher give, and what was chosen where they leave something
  /// open.
  Settings settings;
  /// What was given and has no effect.
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
