#pragma once

#include <cstdint>

#include <sys/types.h>

namespace accelerate::detail {

/// The state of a process as the kernel calls it (proc(5)): R, S, D, T, Z ...;
/// ' ' if there is no such process.
char process_state(pid_t process);

/// Bytes of memory that a process has; 0 if there is no such process.
std::uint64_t resident_bytes(pid_t process);

/// Whether a process has ended, or is about to be waited for.
bool has_ended(pid_t process);

}  // namespace accelerate::detail
