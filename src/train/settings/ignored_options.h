#pragma once

#include <vector>

#include <accelerate/accelerator_options.h>
#include <accelerate/precision.h>

#include "engines/training_request.h"

namespace accelerate::detail {

/// The options of an Accelerator that have no effect, such as those for another
/// precision than the one in force. Throws ConfigError for a profile that
/// cannot be made.
std::vector<IgnoredSetting> options_without_effect(
    const AcceleratorOptions& options,
    Precision precision);

/// The options of replicas that have no effect.
std::vector<IgnoredSetting> options_without_effect(
    const ReplicateOptions& options);

}  // namespace accelerate::detail
