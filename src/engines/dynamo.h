#pragma once

#include <vector>

#include <accelerate/dynamo.h>

#include "config/settings.h"
#include "engines/training_request.h"

namespace accelerate::detail {

/// `given` with every unset field but `dynamic` filled in, from the launcher's
/// `settings` or else the default; the backend is in lower case. Throws
/// ConfigError for a backend that Accelerate does not know.
TorchDynamoOptions resolve_dynamo(
    const TorchDynamoOptions& given,
    const Settings& settings);

/// What the options ask for, or environment variables that no launcher of this
/// project has reported yet. `given` may be null. Throws as resolve_dynamo().
std::vector<IgnoredSetting> dynamo_without_effect(
    const TorchDynamoOptions* given,
    const Settings& settings);

}  // namespace accelerate::detail
