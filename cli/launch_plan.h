#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/port_reservation.h"
#include "config/environment.h"
#include "config/settings.h"

namespace accelerate::cli {

/// What will be started: one program, N times.
struct LaunchPlan {
  std::string program;                 ///< a path that can be executed
  std::vector<std::string> arguments;  ///< with the program first, as typed
  /// Of each rank: every variable it gets, and only those this launcher sets.
  std::vector<detail::Environment> environments;
  std::vector<std::vector<std::string>> own_variables;
  /// Of the store's port, if there is one; to be kept while the ranks run.
  std::unique_ptr<PortReservation> reservation;
};

/// Where the program is: as a path, or on PATH. Throws ConfigError saying what
/// was looked for.
std::string find_program(
    const std::string& name,
    const detail::Environment& environment);

/// Throws ConfigError if the port is taken; with port 0 finds a free one.
LaunchPlan make_launch_plan(
    const detail::Settings& settings,
    const detail::Environment& environment,
    const std::vector<std::string>& command);

/// For --dry_run: command, variables and where each setting came from.
std::string describe(const LaunchPlan& plan, const detail::Settings& settings);

}  // namespace accelerate::cli
