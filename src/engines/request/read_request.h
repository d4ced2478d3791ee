#pragma once

#include <array>
#include <string>

#include <accelerate/model_options.h>
#include <accelerate/parallel_options.h>

#include "config/environment.h"
#include "config/settings.h"
#include "engines/training_request.h"

namespace accelerate::detail {

/// The inputs of a request. The launcher's values fill in what code leaves
/// unset.
struct RequestSources {
  ParallelOptions parallel = {};
  /// "no", "fp16" or "bf16".
  std::string mixed_precision = "no";
  /// True if that precision was not requested, so that a DeepSpeed
  /// configuration may choose another.
  bool precision_is_open = false;
  int num_local_ranks = 1;
  /// The launcher's settings.
  Settings settings = resolve({});
  Environment environment = {};
};

/// Reads the settings of all engines. Reports errors in `complaints` instead of
/// throwing.
TrainingRequest read_training_request(const RequestSources& sources);

/// Reads the settings for a model with its own options. `degrees` are those of
/// the other models, which fill in what the options leave unset;
/// `shard_degree_is_given` says whether code or launcher gives the degree of
/// sharding for them.
TrainingRequest read_model_request(
    const ModelOptions& options,
    const RequestSources& sources,
    const std::array<int, kNumAxes>& degrees,
    bool shard_degree_is_given = false);

}  // namespace accelerate::detail
