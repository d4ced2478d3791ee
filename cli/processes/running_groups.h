#pragma once

#include <string>
#include <vector>

#include <sys/types.h>

#include "launch/board/board.h"

namespace accelerate::cli {

/// A group of ranks running on this machine.
struct RunningGroup {
  /// The process that made its board: its launcher, or its first rank.
  pid_t process = 0;
  detail::Board board;
};

/// All groups whose processes this process may inspect, in the order of their
/// processes. Nothing is registered anywhere: a process that has a board keeps
/// its file open.
std::vector<RunningGroup> find_groups();

/// The group of process `number`, which may be its launcher or a rank. Throws
/// ConfigError listing the existing groups if there is none.
RunningGroup find_group(pid_t number);

}  // namespace accelerate::cli
