#pragma once

#include <vector>

#include "config/settings.h"
#include "engines/read_request.h"
#include "engines/training_request.h"

namespace accelerate::detail {

/// The options of engines given in code, as settings under the launcher's keys.
Source source_of_options(const ParallelOptions& options);

/// Fills in `settings`, which are those of `sources` overridden by the code's,
/// with the value that the engine in use takes for every option that was not
/// given. `request` was read from `sources` without complaints. Returns the
/// launcher's settings that a DeepSpeed configuration overrules, which then
/// have the configuration's values.
std::vector<IgnoredSetting> settle_engine(
    Settings& settings,
    const RequestSources& sources,
    const TrainingRequest& request);

}  // namespace accelerate::detail
