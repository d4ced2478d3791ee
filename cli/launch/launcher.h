#pragma once

#include "cli/launch/launch_plan.h"

namespace accelerate::cli {

/// Starts all ranks, passes their output and our signals on, ends all of them
/// when one fails, and starts them again as often as the plan says. Returns the
/// exit code of the launcher: 0, or that of the rank that failed first, whose
/// reason is then said last on standard error. Throws ConfigError if a rank
/// cannot be started, or the port is taken.
int run_ranks(const LaunchPlan& plan);

}  // namespace accelerate::cli
