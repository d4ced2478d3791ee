#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <accelerate/export.h>

namespace accelerate {

struct LaunchFunctionOptions {
  /// Number of processes, at least 1.
  int num_processes = 1;
  /// Identifies this call of launch_function(). If a program has several calls,
  /// their names must differ.
  std::string name = "main";
  /// Stay on the CPU even if there is an accelerator. Sets
  /// ACCELERATE_USE_CPU=true, unless `variables` say otherwise.
  bool cpu = false;
  /// Additional variables for the ranks, such as ACCELERATE_MIXED_PRECISION.
  /// They and `cpu` override the environment. If the function runs in this
  /// process, they are set while it runs and restored afterwards.
  std::map<std::string, std::string> variables = {};
  /// The ranks' arguments, without the program's name. Unset: this process's.
  /// No effect if the function runs in this process.
  std::optional<std::vector<std::string>> arguments = std::nullopt;
};

/// Runs `function` once in each of `num_processes` processes on this node,
/// which are ranks of one group: an Accelerator made in it finds the others.
/// Meant for programs that are started directly, not by `accelerate-cpp
/// launch`.
///
/// The ranks are new processes of this program with the same arguments, not
/// forks: each runs from the beginning of main() to this call, then the
/// function, and ends there with code 0; calls with other names do nothing in
/// it. So call it early, and do expensive work in the function. If the program
/// is already a rank of another launcher, or `num_processes` is 1, the function
/// simply runs in this process.
///
/// Returns when all ranks have ended successfully. If one fails, the others are
/// terminated, and its error is rethrown here with its class (ConfigError,
/// CheckpointError, DistributedError, DataError, else Error) and rank; a rank
/// that failed by itself takes precedence over one that only lost a peer. No
/// rank outlives this process. Must not be called concurrently. Throws
/// ConfigError if the ranks cannot be started.
ACCELERATE_API void launch_function(
    const std::function<void()>& function,
    const LaunchFunctionOptions& options = {});

/// launch_function() on `num_processes` ranks on the CPU, for trying things
/// out.
ACCELERATE_API void debug_launcher(
    const std::function<void()>& function,
    int num_processes = 2);

}  // namespace accelerate
