#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include <accelerate/parallel_options.h>

#include "config/settings.h"
#include "engines/training_request.h"

namespace accelerate::detail {

/// The degrees of all axes that code or launcher give, in ParallelOptions' own
/// fields, in `config` or Megatron-LM's options, as resolved; null if they could
/// not be or are not in use. Contradictions are added to `complaints`.
std::array<std::optional<int>, kNumAxes> read_degrees(
    const ParallelOptions& options,
    const Settings& settings,
    const ParallelismConfig* config,
    const MegatronLMOptions* megatron,
    std::vector<std::string>& complaints);

/// Puts the code's degrees and its ParallelismConfig into the settings in force.
void record_degrees(Settings& settings, const ParallelOptions& options);

/// Reads what a ParallelismConfig sets besides degrees, which are known, and
/// lists what has no effect. `given` is the program's, `found` the resolved one.
void read_sequences(
    TrainingRequest& request,
    const std::optional<ParallelismConfig>& given,
    const ParallelismConfig& found);

}  // namespace accelerate::detail
