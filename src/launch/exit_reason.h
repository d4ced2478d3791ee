#pragma once

#include <string>

namespace accelerate::detail {

/// A wait status in words: "exited with code 3", "was killed by SIGKILL (out of
/// memory? ...)".
std::string describe_exit(int wait_status);

/// The exit code that a shell would report: the program's, or 128 + signal.
int exit_code_of(int wait_status);

}  // namespace accelerate::detail
