#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <accelerate/export.h>

namespace accelerate {

struct LaunchFunctionOptions {
  int num_processes = 1;
  /// Which call of launch_function() this is, where a program has several:
  /// their names must differ.
  std::string name = std::string("main");
  /// Stay on the CPU even where there is an accelerator.
  bool cpu = false;
  /// More variables for the ranks, such as ACCELERATE_MIXED_PRECISION.
  std::map<std::string, std::string> variables =
      std::map<std::string, std::string>();
  /// The ranks' arguments, without the program's name. Unset: this process's.
  std::optional<std::vector<std::string>> arguments = std::nullopt;
};

/// Runs `function` once in each of `num_processes` processes on this machine,
/// which are ranks of one group: an Accelerator made in it finds the others.
/// For programs that are started by hand, not by `accelerate-cpp launch`.
///
/// The ranks are new starts of this program with the same arguments, not forks
/// of it: each runs from the beginning of main() to this call, then the
/// function, and ends there with code 0; calls with other names do nothing in
/// it. So call it early, and leave what is dear to the function. Where the
/// program is a rank of another launcher already, or `num_processes` is 1, the
/// function simply runs here.
///
/// Returns when all ranks have ended well. If one fails, the others are ended,
/// and the error is thrown here: of the class that it had (ConfigError,
/// CheckpointError, DistributedError, DataError, else Error), naming the rank;
/// that of a rank that did not only lose a peer before others. No rank outlives
/// this process. To be called by one thread. Throws ConfigError if the ranks
/// cannot be started.
ACCELERATE_API void launch_function(
    const std::function<void()>& function,
    const LaunchFunctionOptions& options = {});

/// launch_function() on `num_processes` ranks on the CPU: for trying things out.
ACCELERATE_API void debug_launcher(
    const std::function<void()>& function,
    int num_processes = 2);

}  // namespace accelerate
