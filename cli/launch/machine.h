#pragma once

#include <string>
#include <vector>

#include "config/environment.h"

namespace accelerate::cli {

/// What the launcher has to know of the computer it runs on.
struct Machine {
  /// Without hyperthreads.
  int physical_cores = 1;
  /// NVIDIA's, as its kernel module counts them.
  int num_devices = 0;
  /// Processors this process may run on: its affinity and its cgroup's share.
  std::vector<int> processors;
  int usable_cores = 1;
};

Machine look_at_machine(const detail::Environment& environment);

/// The MPI launcher found on PATH.
struct MpiLauncher {
  std::string program;  ///< its path
  std::string name;     ///< mpirun or mpiexec
  bool is_open_mpi = false;
};

/// Throws ConfigError if there is none.
MpiLauncher find_mpi(const detail::Environment& environment);

}  // namespace accelerate::cli
