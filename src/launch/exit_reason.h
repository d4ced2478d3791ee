#pragma once

#include <string>

namespace accelerate::detail {

/// What a wait status means: "exited with code 3", "was killed by SIGKILL (out
/// of memory? ...)".
std::string describe_exit(int wait_status);

/// The code a shell would report: the program's own, or 128 + signal.
int exit_code_of(int wait_status);

}  // namespace accelerate::detail
