#pragma once

#include <string>

namespace accelerate::detail {

/// Describes the end of a rank that the monitor of hangs killed.
inline constexpr const char* kEndedForHang =
    "was ended because it held up the others (--on_hang kill)";

/// Describes a wait status, as in "exited with code 3" or "was killed by
/// SIGKILL (out of memory? ...)".
std::string describe_exit(int wait_status);

/// A rank's end, as its supervisor knows it.
struct RankEnd {
  int wait_status = 0;
  /// The last signal with which the supervisor ended it; 0: none.
  int ended_with = 0;
  /// Whether the monitor of hangs killed it.
  bool was_killed_for_hang = false;
};

/// Describes who ended a rank, as in "was ended with the others", or otherwise
/// how it ended, as describe_exit() does.
std::string describe_end(const RankEnd& end);

/// Returns the exit code that a shell would report: the program's, or 128 +
/// signal.
int exit_code_of(int wait_status);

}  // namespace accelerate::detail
