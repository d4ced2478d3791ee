#pragma once

#include <accelerate/parallelism_config.h>

#include "config/settings.h"

namespace accelerate::detail {

/// `given` with every unset field filled in, from the launcher's `settings` or
/// else the default; `settings` must have the option table's defaults, as
/// resolve() gives them. Settings for a degree of 1 stay unset. Throws one
/// ConfigError with everything that is wrong.
ParallelismConfig resolve_parallelism(
    const ParallelismConfig& given,
    const Settings& settings);

}  // namespace accelerate::detail
