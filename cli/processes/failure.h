#pragma once

#include <exception>
#include <string>

namespace accelerate::cli {

/// Describes an error reported by the system or the standard library (no more
/// processes, no memory, a file that cannot be used), and what to do about it.
/// This project's own errors describe themselves.
std::string describe_failure(const std::exception_ptr& failure);

/// The reason why a process or thread could not be started, and what to do.
std::string describe_start_problem(int error_number);

}  // namespace accelerate::cli
