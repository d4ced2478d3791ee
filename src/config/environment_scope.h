#pragma once

#include <map>
#include <string>

#include <accelerate/environment.h>

namespace accelerate::detail {

/// patch_environment() with names taken as written.
[[nodiscard]] EnvironmentScope set_environment(
    const std::map<std::string, std::string>& variables);

}  // namespace accelerate::detail
