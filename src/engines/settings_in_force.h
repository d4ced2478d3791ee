#pragma once

#include <vector>

#include "config/settings.h"
#include "engines/read_request.h"
#include "engines/training_request.h"

namespace accelerate::detail {

/// The options of engines that code gives, as settings by the launcher's keys.
Source source_of_options(const ParallelOptions& options);

/// Fills in `settings`, those of `sources` with code's on top, what the engine
/// in use takes for every option that nobody gave. `request` was read from
/// `sources` without complaints. Returns the launcher's settings that a
/// DeepSpeed configuration overrules, which then have the configuration's
/// values.
std::vector<IgnoredSetting> settle_engine(
    Settings& settings,
    const RequestSources& sources,
    const TrainingRequest& request);

}  // namespace accelerate::detail
