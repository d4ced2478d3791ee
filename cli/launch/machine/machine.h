#pragma once

#include <vector>

#include "config/environment.h"

namespace accelerate::cli {

/// The resources of the launcher's machine.
struct Machine {
  /// Number of cores, not counting hyperthreads.
  int physical_cores = 1;
  /// Number of NVIDIA devices, as counted by the kernel module.
  int num_devices = 0;
  /// Processors that this process may run on; usable_cores also respects the
  /// quota of its cgroup.
  std::vector<int> processors;
  int usable_cores = 1;
};

Machine look_at_machine(const detail::Environment& environment);

}  // namespace accelerate::cli
