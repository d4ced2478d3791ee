#pragma once

#include <cstdint>

#include <sys/types.h>

namespace accelerate::detail {

/// Returns the kernel's state of a process (proc(5)): R, S, D, T, Z ...; ' ' if
/// there is no such process.
char process_state(pid_t process);

/// Returns the resident memory of a process in bytes; 0 if there is no such
/// process.
std::uint64_t resident_bytes(pid_t process);

/// Whether a process has ended, including one that has not been waited for yet.
bool has_ended(pid_t process);

}  // namespace accelerate::detail
