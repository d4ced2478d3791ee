#pragma once

#include <string>
#include <vector>

#include "cli/launch/decision/launch_plan.h"
#include "cli/launch/signals.h"

namespace accelerate::cli {

/// A measured connection from one machine to another.
struct Reach {
  int from = 0;
  int to = 0;
  std::string interface;  ///< interface and address of `from`
  std::string problem;    ///< empty if the connection works
  double round_trip_us = 0;
  double megabytes_per_second = 0;
};

/// Measures the connections between all machines: each listens on a port and
/// connects to every other. All machines call this at the same time and receive
/// all results. Throws DistributedError if machine 0 cannot be reached or a
/// machine does not join, or Stopped.
std::vector<Reach> check_machines(
    const LaunchPlan& plan,
    const StorePlace& place,
    const Signals& signals);

/// One line of text per pair.
std::string describe(const std::vector<Reach>& results);

}  // namespace accelerate::cli
