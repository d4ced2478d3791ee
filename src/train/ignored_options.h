#pragma once

#include <string>
#include <vector>

#include <accelerate/accelerator_options.h>

#include "config/settings.h"
#include "engines/training_request.h"

namespace accelerate::detail {

/// The options of an Accelerator, and the launcher's settings for them, that
/// are known from Accelerate and do nothing here. Throws ConfigError for those
/// that Accelerate would refuse, too.
std::vector<IgnoredSetting> options_without_effect(
    const AcceleratorOptions& options,
    const Settings& settings);

/// Those among the options of replicas.
std::vector<IgnoredSetting> options_without_effect(
    const ReplicateOptions& options);

}  // namespace accelerate::detail
