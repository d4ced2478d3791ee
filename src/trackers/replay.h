#pragma once

#include <functional>
#include <string>
#include <vector>

#include <accelerate/tracker.h>

#include "format/journal/journal_entry.h"
#include "trackers/feed_item.h"

namespace accelerate::detail {

/// What a journal has for trackers.
struct RecordedRun {
  /// As given to init_trackers(); empty if it was not called.
  std::string project;
  /// When the first process began, in seconds since 1970.
  double begin = 0;
  /// What all processes configured; the later of two values of one name.
  TrackedValues config;
  /// In the order in which they were logged, with their times and steps.
  std::vector<FeedItem> items;
};

/// Reads the entries of a journal. Of a step that was repeated after a crash,
/// only the repetition counts, as in RunHistory. What was not logged by the
/// program (figures of the machine, warnings, checkpoints) is left out.
RecordedRun recorded_run(const std::vector<JournalEntry>& entries);

}  // namespace accelerate::detail
