#pragma once

#include <vector>

#include "config/settings.h"
#include "engines/training_request.h"

namespace accelerate::detail {

struct Session;

/// Whether an engine or an option already reported this setting as ignored, so
/// that the report does not repeat it under its key.
bool is_named(
    const std::vector<IgnoredSetting>& ignored,
    const GivenSetting& given);

/// Adds settings to the report, each once.
void note_ignored_settings(
    Session& session,
    const std::vector<IgnoredSetting>& settings);

}  // namespace accelerate::detail
