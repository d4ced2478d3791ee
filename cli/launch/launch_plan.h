#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/launch/launch_decision.h"
#include "cli/launch/machine.h"
#include "config/environment.h"
#include "config/settings.h"

namespace accelerate::cli {

/// What of a rank's output is shown, where it goes to files, too.
struct Shown {
  bool out = true;
  bool err = true;
};

/// What will be started: one program, several times.
struct LaunchPlan {
  std::string program;                 ///< a path that can be executed
  std::vector<std::string> arguments;  ///< with the program first, as typed
  /// What every rank gets of the launcher's own environment, and of what the
  /// settings add; and the names of the latter.
  detail::Environment environment;
  std::vector<std::string> added;
  /// A lone Python process: it is told of no ranks, as Accelerate does it.
  bool is_alone = false;

  int num_processes = 1;  ///< on all machines
  int num_machines = 1;
  int machine_rank = 0;
  std::string address = "127.0.0.1";
  /// 0: a free one. Nothing: there is no store, as there is but one process.
  std::optional<int> port;

  int num_threads = 0;  ///< of each rank; 0: left to it
  /// Processors that each rank of this node is bound to. Empty: not bound.
  std::vector<std::vector<int>> processors;

  std::string role;
  std::optional<std::string> log_dir;
  std::vector<Shown> shown;  ///< of each rank here
  int max_restarts = 0;
  bool is_quiet = false;
  bool checks_machines = false;

  [[nodiscard]] int processes_here() const {
    return num_processes / num_machines;
  }
  [[nodiscard]] int rank_of(int local_rank) const {
    return machine_rank * processes_here() + local_rank;
  }
};

/// Where the program is: as a path, or on PATH. Throws ConfigError saying what
/// was looked for.
std::string find_program(
    const std::string& name,
    const detail::Environment& environment);

/// Whether the variables of Accelerate's Python library matter to it.
bool is_python(const std::string& program);

/// Throws ConfigError for what cannot be started.
LaunchPlan make_launch_plan(
    const LaunchDecision& decision,
    const detail::Settings& settings,
    const detail::Environment& environment,
    const Machine& machine,
    const std::vector<std::string>& command);

/// What one rank is told of itself, as NAME=VALUE.
std::vector<std::string>
rank_variables(const LaunchPlan& plan, int local_rank, int attempt, int port);

/// For --dry_run: command, variables and where each setting came from.
std::string describe(const LaunchPlan& plan, const detail::Settings& settings);

/// What the settings ask for and a program of this library does not get, a line
/// for each; nothing for a Python program.
std::vector<std::string> launch_warnings(
    const detail::Settings& settings,
    const std::string& program);

}  // namespace accelerate::cli
