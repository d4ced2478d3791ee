#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <accelerate/tracker.h>

#include "format/journal/journal_kinds.h"
#include "track/run_journal.h"
#include "trackers/feed/feed_item.h"
#include "trackers/feed/tracker_feed.h"
#include "trackers/registry.h"

namespace accelerate::detail {

/// An accelerator's trackers and journal. On all but the main process it only
/// leaves this rank's figures for the journal on the board. Functions are for
/// one thread.
class RunTracking {
 public:
  /// Throws ConfigError for trackers that cannot be used. A journal that cannot
  /// be opened is a warning.
  explicit RunTracking(RunTrackingOptions options);
  RunTracking(const RunTracking&) = delete;
  RunTracking& operator=(const RunTracking&) = delete;
  /// Ends like finish().
  ~RunTracking();

  void init_trackers(
      const std::string& project_name,
      const std::optional<TrackedValues>& config,
      const TrackerKwargs& init_kwargs);
  /// Whether a tracker or journal receives logged items; if not, they need not
  /// be made.
  [[nodiscard]] bool is_active() const;
  /// Sets the item's time. The item is not to be changed afterwards.
  void push(const std::shared_ptr<TrackedItem>& item);
  void push(TrackedItem item) {
    push(std::make_shared<TrackedItem>(std::move(item)));
  }
  /// Logs values of a step without options.
  void log(TrackedValues values, std::optional<std::int64_t> step);
  /// Adds an event to the journal, in its turn, if there is one.
  void add_event(JournalEvent event, std::optional<std::int64_t> step) {
    journal_.add(std::move(event), step);
  }
  /// Adds numbers of the step that was logged last to the journal, in their turn.
  void add_figures(const TrackedValues& figures);
  /// Adds a table of where the time of steps goes, as add_event().
  void add_profile(const TrackedTable& table);
  /// Notes a checkpoint once `is_done` says so.
  void note_checkpoint(std::string path, std::function<bool()> is_done);

  [[nodiscard]] const TrackerFeed::Trackers& trackers() const {
    return trackers_;
  }
  [[nodiscard]] std::shared_ptr<GeneralTracker> get_tracker(
      const std::string& name);
  [[nodiscard]] std::filesystem::path run_dir() const {
    return journal_.run_dir();
  }
  void flush();
  void finish();

  /// Nothing without a journal.
  [[nodiscard]] std::optional<RunPosition> position() const;
  /// Continues the journal of that run, if there is one here.
  void resume(const RunPosition& position);

 private:
  struct PendingCheckpoint {
    std::string path;
    std::optional<std::int64_t> step;
    std::function<bool()> is_done;
  };

  bool begin_push(LogTime& time);
  void check_first_step(std::int64_t step);
  void note_done_checkpoints(bool all);

  RunTrackingOptions options_;
  std::vector<ChosenTracker> chosen_;
  TrackerFeed::Trackers trackers_;
  bool has_project_ = false;
  // What log() touches, side by side.
  RunJournal journal_;
  std::optional<std::int64_t> last_step_;
  // The step after which the run was resumed, until a step is logged.
  std::optional<std::int64_t> resumed_after_;
  std::vector<PendingCheckpoint> pending_checkpoints_;
  bool has_finished_ = false;
  // Last, so that its thread ends first.
  std::unique_ptr<TrackerFeed> feed_;
};

}  // namespace accelerate::detail
