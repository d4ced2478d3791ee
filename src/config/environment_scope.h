#pragma once

#include <map>
#include <string>

#include <accelerate/environment.h>

namespace accelerate::detail {

/// patch_environment() that takes names as they are written.
[[nodiscard]] EnvironmentScope set_environment(
    const std::map<std::string, std::string>& variables);

}  // namespace accelerate::detail
