#pragma once

#include <accelerate/accelerator.h>

#include "config/settings.h"

namespace accelerate::detail {

/// Micro-steps of a window: what the code says, else the launcher. Throws
/// ConfigError if it is below 1, or if the code says two things.
int accumulation_window(
    const AcceleratorOptions& options,
    const Settings& settings);

}  // namespace accelerate::detail
