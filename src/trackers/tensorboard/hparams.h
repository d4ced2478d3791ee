#pragma once

#include <array>
#include <string>

#include <accelerate/tracker.h>

namespace accelerate::detail {

/// What TensorBoard's dashboard of hyperparameters reads: the Summary messages
/// of the experiment, of the session's start and of its end. Values that are
/// none are left out. Throws ConfigError for values that are neither numbers,
/// truth values nor strings.
std::array<std::string, 3> hparams_summaries(
    const TrackedValues& values,
    double begin);

}  // namespace accelerate::detail
