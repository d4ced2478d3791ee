#pragma once

#include "cli/launch/decision/launch_plan.h"

namespace accelerate::cli {

/// Starts all ranks, forwards their output and our signals, stops all of them
/// when one fails, and restarts them up to max_restarts times. Returns 0, or
/// the exit code of the rank that failed first; its reason is the last line on
/// standard error. Throws ConfigError if a rank cannot be started or the port
/// is taken.
int run_ranks(const LaunchPlan& plan);

}  // namespace accelerate::cli
