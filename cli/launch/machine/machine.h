#pragma once

#include <filesystem>
#include <vector>

#include "base/machine/gpus.h"
#include "config/environment.h"

namespace accelerate::cli {

/// The resources of the launcher's machine.
struct Machine {
  /// Number of cores, not counting hyperthreads.
  int physical_cores = 1;
  /// The GPUs that ranks see, in the order in which they count them.
  std::vector<detail::Gpu> gpus;
  /// Processors that this process may run on; usable_cores also respects the
  /// quota of its cgroup.
  std::vector<int> processors;
  int usable_cores = 1;

  [[nodiscard]] int num_devices() const {
    return static_cast<int>(gpus.size());
  }
};

/// `root` is where the files are that describe GPUs.
Machine look_at_machine(
    const detail::Environment& environment,
    const std::filesystem::path& root = "/");

}  // namespace accelerate::cli
