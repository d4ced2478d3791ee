#pragma once

#include <string>
#include <vector>

#include "cli/launch/decision/launch_decision.h"
#include "config/environment.h"
#include "config/settings.h"

namespace accelerate::cli {

/// Whether another launcher starts the ranks: mpirun, or DeepSpeed's on several
/// machines.
bool is_left_to_others(
    const LaunchDecision& decision,
    const detail::Settings& settings);

/// Warnings about given settings that belong to another way of starting ranks
/// than that of the decision, and so do nothing.
std::vector<std::string> warnings_of_start(
    const LaunchDecision& decision,
    const detail::Settings& settings,
    const std::string& program);

/// The MPI launcher found on PATH.
struct MpiLauncher {
  std::string program;  ///< its path
  std::string name;     ///< mpirun or mpiexec
  bool is_open_mpi = false;
};

/// Throws ConfigError if PATH has none.
MpiLauncher find_mpi(const detail::Environment& environment);

/// The command line of mpirun, without the program's.
std::vector<std::string> mpi_command(
    const LaunchDecision& decision,
    const MpiLauncher& mpi);
/// The command line of DeepSpeed's launcher, without the program's.
std::vector<std::string> deepspeed_command(
    const LaunchDecision& decision,
    const detail::Settings& settings);

}  // namespace accelerate::cli
