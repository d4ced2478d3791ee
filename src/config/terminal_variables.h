#pragma once

#include "config/environment.h"

namespace accelerate::detail {

/// What environment variables say of the terminal.
struct TerminalVariables {
  /// The locale's character set (LC_ALL, else LC_CTYPE, else LANG) is UTF-8.
  bool has_utf8 = false;
  /// Neither NO_COLOR is set nor TERM "dumb".
  bool wants_colors = true;
};

TerminalVariables terminal_variables(const Environment& environment);

}  // namespace accelerate::detail
