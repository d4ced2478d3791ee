#pragma once

#include "cli/launch/decision/launch_decision.h"
#include "cli/launch/decision/launch_plan.h"
#include "cli/launch/machine/machine.h"
#include "config/environment.h"
#include "config/settings.h"

namespace accelerate::cli {

/// Throws ConfigError if the launch names GPUs and starts more ranks than this
/// machine has, unless they may share them. Other programs may compute on the
/// CPU, so there the ranks themselves refuse.
void share_gpus(
    LaunchPlan& plan,
    const LaunchDecision& decision,
    const detail::Settings& settings,
    const Machine& machine);

/// Chooses the processors to which ranks are bound, near their GPUs if they
/// have any, and the number of threads of each.
void share_cores(
    LaunchPlan& plan,
    const LaunchDecision& decision,
    const detail::Settings& settings,
    const detail::Environment& environment,
    const Machine& machine);

}  // namespace accelerate::cli
