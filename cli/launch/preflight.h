#pragma once

#include <string>
#include <vector>

#include "cli/launch/launch_plan.h"
#include "cli/launch/signals.h"

namespace accelerate::cli {

/// What one machine found on its way to another.
struct Reach {
  int from = 0;
  int to = 0;
  std::string interface;  ///< of `from`, and its address
  std::string problem;    ///< nothing: it works
  double round_trip_us = 0;
  double megabytes_per_second = 0;
};

/// Before the start: each machine binds a port, connects to every other and
/// measures. All machines call this at the same time; all get all results.
/// Throws DistributedError if machine 0 cannot be reached or one does not come,
/// and Stopped.
std::vector<Reach>
check_machines(const LaunchPlan& plan, int store_port, const Signals& signals);

/// A line for each pair.
std::string describe(const std::vector<Reach>& results);

}  // namespace accelerate::cli
