#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "cli/launch/decision/launch_decision.h"
#include "cli/launch/machine/machine.h"
#include "config/environment.h"
#include "config/settings.h"
#include "launch/board/hang_monitor.h"

namespace accelerate::cli {

/// Which of a rank's streams are shown, in addition to going to files.
struct Shown {
  bool out = true;
  bool err = true;
};

/// The ranks that will be started, all running one program.
struct LaunchPlan {
  std::string program;                 ///< an executable path
  std::vector<std::string> arguments;  ///< with the program first, as typed
  /// The variables that all ranks share: the launcher's own and those added by
  /// the settings. `added` has the latter as NAME=VALUE.
  detail::Environment environment;
  std::vector<std::string> added;
  /// True for a single Python process, which, as with Accelerate, gets no rank
  /// variables.
  bool is_alone = false;

  int num_processes = 1;  ///< on all machines; of an elastic group, the most
  /// The fewest processes with which an elastic group continues.
  int fewest_processes = 1;
  int num_machines = 1;
  int machine_rank = 0;
  std::string address = "127.0.0.1";
  /// 0: any free port. Unset: a single process without a store.
  std::optional<int> port;
  /// The store's secret that the user gave to the launchers of all machines;
  /// empty if none.
  std::string given_secret;

  int num_threads = 0;  ///< per rank; 0: not set
  /// Processors to which each rank of this node is bound. Empty: not bound.
  std::vector<std::vector<int>> processors;

  /// Gives each rank here a name of its own for NCCL's machine, so that ranks
  /// may share a GPU.
  bool shares_gpus = false;

  std::string role;
  std::optional<std::string> log_dir;
  std::vector<Shown> shown;  ///< per rank of this machine
  int max_restarts = 0;
  bool is_quiet = false;
  bool checks_machines = false;
  /// How long ranks may continue after the launcher received SIGTERM.
  std::chrono::milliseconds grace{};
  /// True if the program reports on a board what it does; Python programs do
  /// not.
  bool has_board = false;
  /// Where ranks may keep states in memory while the launcher runs; empty:
  /// nowhere. Not created yet.
  std::string memory_directory;
  /// How the ranks are watched for hangs.
  std::chrono::milliseconds hang_threshold{};
  detail::OnHang on_hang = detail::OnHang::stacks;

  [[nodiscard]] int processes_here() const {
    return num_processes / num_machines;
  }
  /// Whether machines may join and leave the group while it runs.
  [[nodiscard]] bool has_elastic_machines() const {
    return num_machines > 1 && fewest_processes < num_processes;
  }
  /// Whether a rank that ends may be replaced individually, if the program
  /// agrees, by a launcher that decides for all.
  [[nodiscard]] bool may_replace_ranks() const {
    return has_board && num_machines == 1 && num_processes > 1 &&
        (max_restarts > 0 || fewest_processes < num_processes);
  }
  [[nodiscard]] int rank_of(int local_rank) const {
    return machine_rank * processes_here() + local_rank;
  }
};

/// The path of the program, which is looked up in PATH if it has no slash.
/// Throws ConfigError if it does not exist.
std::string find_program(
    const std::string& name,
    const detail::Environment& environment);

/// Whether the program is a Python interpreter or script.
bool is_python(const std::string& program);

/// The command with which Accelerate starts `command`: a script, or with
/// --module a module, is run by Python, unbuffered if there are several
/// processes. The interpreter is PYTHON_EXEC, otherwise python3 or python of
/// PATH. Throws ConfigError if there is no such script or interpreter.
std::vector<std::string> with_interpreter(
    const std::vector<std::string>& command,
    const LaunchDecision& decision,
    const detail::Settings& settings,
    const detail::Environment& environment);

/// Throws ConfigError for a launch that is not possible.
LaunchPlan make_launch_plan(
    const LaunchDecision& decision,
    const detail::Settings& settings,
    const detail::Environment& environment,
    const Machine& machine,
    const std::vector<std::string>& command);

/// Where ranks find the store. Without a secret, none is passed on.
struct StorePlace {
  int port = 0;
  std::string secret;
};

/// A rank's place in a group that may lack some machines.
struct RankPlace {
  int rank = 0;
  int num_ranks = 1;
};

/// The variables of a single rank, as NAME=VALUE. Without a `place`, uses the
/// place in a group of all machines.
std::vector<std::string> rank_variables(
    const LaunchPlan& plan,
    int local_rank,
    int attempt,
    const StorePlace& store,
    std::optional<RankPlace> place = std::nullopt);

/// For --dry_run: the command, the variables, and the origin of each setting.
std::string describe(const LaunchPlan& plan, const detail::Settings& settings);

/// Warnings about settings that have no effect on a program of this library.
/// Empty for a Python program.
std::vector<std::string> launch_warnings(
    const detail::Settings& settings,
    const std::string& program);

}  // namespace accelerate::cli
