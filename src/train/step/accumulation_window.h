#pragma once

#include <accelerate/accelerator.h>

#include "config/settings.h"

namespace accelerate::detail {

/// Number of micro-steps per window: from the code, otherwise from the
/// launcher. Throws ConfigError if it is below 1, or if the code gives two
/// numbers.
int accumulation_window(
    const AcceleratorOptions& options,
    const Settings& settings);

}  // namespace accelerate::detail
