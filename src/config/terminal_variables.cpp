#include "config/terminal_variables.h"

#include <string>

#include "base/text/text.h"

namespace accelerate::detail {

TerminalVariables terminal_variables(const Environment& environment) {
  TerminalVariables terminal;
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    if (const auto locale = environment.get(name)) {
      const std::string lower = to_lower(*locale);
      terminal.has_utf8 = lower.find("utf-8") != std::string::npos ||
          lower.find("utf8") != std::string::npos;
      break;
    }
  }
  terminal.wants_colors =
      !environment.has("NO_COLOR") && environment.get("TERM") != "dumb";
  return terminal;
}

}  // namespace accelerate::detail
