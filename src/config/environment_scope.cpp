#include "config/environment_scope.h"

#include <cstdlib>
#include <optional>
#include <utility>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "config/environment.h"

namespace accelerate {

EnvironmentScope::EnvironmentScope(
    std::map<std::string, std::optional<std::string>> previous,
    bool clears)
    : previous_(std::move(previous)), clears_(clears) {}

EnvironmentScope::~EnvironmentScope() {
  if (clears_) ::clearenv();
  for (const auto& [name, value] : previous_) {
    if (value) {
      ::setenv(name.c_str(), value->c_str(), /*overwrite=*/1);
    } else {
      ::unsetenv(name.c_str());
    }
  }
}

EnvironmentScope detail::set_environment(
    const std::map<std::string, std::string>& variables) {
  const Environment before = Environment::current();
  std::map<std::string, std::optional<std::string>> previous;
  for (const auto& [name, value] : variables) {
    const auto found = before.all().find(name);
    previous[name] = found == before.all().end() ? std::nullopt
                                                 : std::optional(found->second);
    ::setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
  }
  return {std::move(previous), /*clears=*/false};
}

EnvironmentScope patch_environment(
    const std::map<std::string, std::string>& variables) {
  std::map<std::string, std::string> upper;
  for (const auto& [name, value] : variables) {
    if (name.empty() || name.find('=') != std::string::npos) {
      throw ConfigError(detail::format(
          "[config] the name of a variable must not be empty or contain \"=\", "
          "but is \"{}\" (patch_environment)",
          name));
    }
    upper.insert_or_assign(detail::to_upper(name), value);
  }
  return detail::set_environment(upper);
}

EnvironmentScope clear_environment() {
  std::map<std::string, std::optional<std::string>> previous;
  const detail::Environment before = detail::Environment::current();
  for (const auto& [name, value] : before.all()) previous[name] = value;
  ::clearenv();
  return {std::move(previous), /*clears=*/true};
}

}  // namespace accelerate
