#pragma once

#include <cstddef>
#include <vector>

#include "config/settings.h"
#include "engines/training_request.h"

namespace accelerate::detail {

struct Session;

/// Settings that were given and have no effect; see
/// report_settings_without_effect().
struct SettingsReport {
  /// Settings that an engine ignores, known from the start.
  std::vector<IgnoredSetting> ignored = {};
  /// How many of these have been reported.
  std::size_t num_reported = 0;
  bool is_made = false;
  /// True if a schedule was prepared that the engine's settings describe.
  bool has_engine_schedule = false;
};

/// Whether an engine or an option already reported this setting as ignored, so
/// that the report does not repeat it under its key.
bool is_named(
    const std::vector<IgnoredSetting>& ignored,
    const GivenSetting& given);

/// Adds settings to the report, each once.
void note_ignored_settings(
    Session& session,
    const std::vector<IgnoredSetting>& settings);

/// Warns once, on the main process, about every setting from code, flags,
/// variables or a file that neither took effect nor was refused, with its
/// origin. Must be called once everything that reads settings has had the
/// chance to: when a step begins, in finish(), and when the last handle of a
/// program that did neither is destroyed. Later calls only report what was
/// noted in between.
void report_settings_without_effect(Session& session);

}  // namespace accelerate::detail
