#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "config/environment.h"

namespace accelerate::detail {

/// The terminal's properties, from environment variables.
struct TerminalVariables {
  /// True if the locale's character set (LC_ALL, else LC_CTYPE, else LANG) is
  /// UTF-8.
  bool has_utf8 = false;
  /// True unless NO_COLOR is set or TERM is "dumb".
  bool wants_colors = true;
};

TerminalVariables terminal_variables(const Environment& environment);

/// NCCL's own variables, which it reads itself, as NAME=VALUE.
std::vector<std::string> nccl_variables(const Environment& environment);
/// The same and the variable that names NCCL's library, one line each, in the
/// form of Settings::explain().
std::string explain_nccl_variables(const Environment& environment);

/// Whether models made without memory have no memory for buffers either
/// (ACCELERATE_INIT_INCLUDE_BUFFERS; false if it is unset). Throws ConfigError
/// for a value that is not a boolean.
bool init_includes_buffers(const Environment& environment);

/// The directory for files that can be recreated: `accelerate_cpp` below
/// XDG_CACHE_HOME, else below HOME's `.cache`. Nothing if neither variable is
/// set to an absolute path.
std::optional<std::filesystem::path> cache_directory(
    const Environment& environment);

}  // namespace accelerate::detail
