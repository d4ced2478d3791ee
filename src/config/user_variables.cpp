#include "config/user_variables.h"

#include <string>

#include <accelerate/error.h>

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

std::vector<std::string> nccl_variables(const Environment& environment) {
  std::vector<std::string> found;
  for (const auto& [name, value] : environment.all()) {
    if (name.starts_with("NCCL_"))
      found.push_back(format("{}={}", name, printable(value)));
  }
  return found;
}

std::string explain_nccl_variables(const Environment& environment) {
  std::string out;
  const auto add = [&](const std::string& variable, std::string_view remark) {
    const std::size_t sign = variable.find('=');
    out += format(
        "{} = {}  (environment variable{})\n",
        variable.substr(0, sign),
        variable.substr(sign + 1),
        remark);
  };
  if (const auto path = environment.get("ACCELERATE_NCCL_LIBRARY"))
    add(format("ACCELERATE_NCCL_LIBRARY={}", printable(*path)), "");
  for (const std::string& variable : nccl_variables(environment))
    add(variable, "; NCCL reads it itself");
  return out;
}

bool init_includes_buffers(const Environment& environment) {
  const auto text = environment.get("ACCELERATE_INIT_INCLUDE_BUFFERS");
  if (!text) return false;
  const auto value = parse_bool(*text);
  if (!value) {
    throw ConfigError(format(
        "[config] ACCELERATE_INIT_INCLUDE_BUFFERS must be true "
        "or false, but is \"{}\"",
        *text));
  }
  return *value;
}

std::optional<std::filesystem::path> cache_directory(
    const Environment& environment) {
  // The XDG specification ignores relative paths.
  const auto absolute = [&](std::string_view name) {
    const std::filesystem::path path = environment.get(name).value_or("");
    return path.is_absolute() ? std::optional(path) : std::nullopt;
  };
  if (const auto cache = absolute("XDG_CACHE_HOME"))
    return *cache / "accelerate_cpp";
  if (const auto home = absolute("HOME"))
    return *home / ".cache" / "accelerate_cpp";
  return std::nullopt;
}

}  // namespace accelerate::detail
