#pragma once

#include <string>

namespace accelerate::detail {

/// Describes the end of a rank that the monitor of hangs killed.
inline constexpr const char* kEndedForHang =
    "was ended because it held up the others (--on_hang kill)";

/// Describes a wait status, as in "exited with code 3" or "was killed by
/// SIGKILL (out of memory? ...)".
std::string describe_exit(int wait_status);

/// Returns the exit code that a shell would report: the program's, or 128 +
/// signal.
int exit_code_of(int wait_status);

}  // namespace accelerate::detail
