#pragma once

#include "config/environment.h"

namespace accelerate::detail {

/// What environment variables say about the terminal.
struct TerminalVariables {
  /// True if the locale's character set (LC_ALL, else LC_CTYPE, else LANG) is
  /// UTF-8.
  bool has_utf8 = false;
  /// True unless NO_COLOR is set or TERM is "dumb".
  bool wants_colors = true;
};

TerminalVariables terminal_variables(const Environment& environment);

}  // namespace accelerate::detail
