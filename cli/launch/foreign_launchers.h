#pragma once

#include <string>
#include <vector>

#include "cli/launch/launch_decision.h"
#include "cli/launch/machine.h"

namespace accelerate::cli {

/// Whether others start the ranks: mpirun, or DeepSpeed's launcher on several
/// machines.
bool is_left_to_others(
    const LaunchDecision& decision,
    const detail::Settings& settings);

/// Their command line before the program's.
std::vector<std::string> mpi_command(
    const LaunchDecision& decision,
    const MpiLauncher& mpi);
std::vector<std::string> deepspeed_command(
    const LaunchDecision& decision,
    const detail::Settings& settings);

}  // namespace accelerate::cli
