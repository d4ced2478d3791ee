#pragma once

#include <vector>

#include <accelerate/accelerator_options.h>
#include <accelerate/precision.h>

#include "config/settings.h"
#include "engines/training_request.h"

namespace accelerate::detail {

/// The options of an Accelerator, and the launcher's settings for them, that
/// have no effect: those known from Accelerate that nothing here acts on, and
/// those for another precision than the one in force. Throws ConfigError for
/// those that Accelerate would refuse as well.
std::vector<IgnoredSetting> options_without_effect(
    const AcceleratorOptions& options,
    const Settings& settings,
    Precision precision);

/// The options of replicas that have no effect.
std::vector<IgnoredSetting> options_without_effect(
    const ReplicateOptions& options);

}  // namespace accelerate::detail
