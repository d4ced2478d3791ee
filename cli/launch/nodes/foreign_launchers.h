#pragma once

#include <string>
#include <vector>

#include "cli/launch/decision/launch_decision.h"
#include "config/environment.h"
#include "config/settings.h"

namespace accelerate::cli {

/// Whether another launcher starts the ranks: mpirun, or DeepSpeed's for
/// several machines.
bool is_left_to_others(
    const LaunchDecision& decision,
    const detail::Settings& settings);

/// Warnings about given settings that have no effect because they belong to
/// another way of starting ranks than the one decided.
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

/// The command line of mpirun, excluding the program's.
std::vector<std::string> mpi_command(
    const LaunchDecision& decision,
    const MpiLauncher& mpi);
/// The command line of DeepSpeed's launcher, excluding the program's.
std::vector<std::string> deepspeed_command(
    const LaunchDecision& decision,
    const detail::Settings& settings);

}  // namespace accelerate::cli
