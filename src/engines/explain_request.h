#pragma once

#include <string>

#include "engines/training_request.h"

namespace accelerate::detail {

/// Describes the request, one line per subject: engine, degrees, sharding, wrap
/// policy, recomputation, step, precision, optimizer, and each setting without
/// effect, with its origin.
std::string explain(const TrainingRequest& request);

}  // namespace accelerate::detail
