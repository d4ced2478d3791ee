#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace accelerate::detail {

/// `subject` as the name of a directory, with local date and time and four
/// random hexadecimal digits: "digits-20250131-235959-0f3a".
std::string make_run_name(std::string_view subject);

/// Throws ConfigError unless the name is that of a directory.
void require_run_name(const std::string& name);

/// The command line of this process, by words; empty if the system does not
/// report it.
std::vector<std::string> command_of_process();

/// The program's name, without its directories.
std::string program_name();

/// This machine's name.
std::string host_name();

}  // namespace accelerate::detail
