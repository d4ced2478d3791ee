#pragma once

#include <array>
#include <string>

#include <accelerate/model_options.h>
#include <accelerate/parallel_options.h>

#include "config/environment.h"
#include "config/settings.h"
#include "engines/training_request.h"

namespace accelerate::detail {

/// The inputs of a request. A launcher's values count where code is silent.
struct RequestSources {
  ParallelOptions parallel = {};
  /// "no", "fp16" or "bf16".
  std::string mixed_precision = "no";
  int num_local_ranks = 1;
  Settings settings = {};
  Environment environment = {};
};

/// Reads the settings of every engine. What is wrong is in `complaints`; it
/// throws nothing of its own.
TrainingRequest read_training_request(const RequestSources& sources);

/// The same for a model with options of its own. `degrees`: of the other
/// models, which say what is left open.
TrainingRequest read_model_request(
    const ModelOptions& options,
    const RequestSources& sources,
    const std::array<int, kNumAxes>& degrees);

}  // namespace accelerate::detail
