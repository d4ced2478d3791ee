#pragma once

#include <string>
#include <vector>

#include <sys/types.h>

#include "launch/board/board.h"

namespace accelerate::cli {

/// A group of ranks that runs on this machine.
struct RunningGroup {
  /// The process that made its board: its launcher, or its first rank.
  pid_t process = 0;
  detail::Board board;
};

/// The groups of all processes into which this one may look, in the order of
/// their processes. Nothing is registered anywhere: a process that has a board
/// keeps its file open.
std::vector<RunningGroup> find_groups();

/// The group of the process `number`, which may be its launcher or a rank.
/// Throws ConfigError if there is none, with the groups that there are.
RunningGroup find_group(pid_t number);

}  // namespace accelerate::cli
