#pragma once

#include <string>

#include "engines/training_request.h"

namespace accelerate::detail {

/// The request in words, one line per subject: engine, degrees, sharding, wrap
/// policy, recomputation, step, precision, optimizer, and each setting that
/// does nothing, with where it came from.
std::string explain(const TrainingRequest& request);

}  // namespace accelerate::detail
