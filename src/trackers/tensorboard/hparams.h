#pragma once

#include <array>
#include <string>

#include <accelerate/tracker.h>

namespace accelerate::detail {

/// The Summary messages for TensorBoard's hyperparameter dashboard: the
/// experiment, the session's start and its end. Values that are none are left
/// out. Throws ConfigError for values that are not numbers, booleans or
/// strings.
std::array<std::string, 3> hparams_summaries(
    const TrackedValues& values,
    double begin);

}  // namespace accelerate::detail
