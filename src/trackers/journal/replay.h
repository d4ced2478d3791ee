#pragma once

#include <string>
#include <vector>

#include <accelerate/tracker.h>

#include "format/journal/journal_entry.h"

namespace accelerate::detail {

/// What a journal contains for trackers.
struct RecordedRun {
  /// The name given to init_trackers(); empty if it was not called.
  std::string project;
  /// When the first process began, in seconds since 1970.
  double begin = 0;
  /// The configuration from all processes; for equal names, the later value.
  TrackedValues config;
  /// Replays entries in logging order, with their original times and steps.
  std::vector<TrackedItem> items;
};

/// Reads the entries of a journal. If a step was repeated after a crash, only
/// the repetition counts, as in RunHistory. What the program did not log itself
/// (figures of the machine, warnings, checkpoints) is left out.
RecordedRun recorded_run(const std::vector<JournalEntry>& entries);

}  // namespace accelerate::detail
