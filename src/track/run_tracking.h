#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <accelerate/log.h>
#include <accelerate/tracker.h>

#include "config/environment.h"
#include "format/journal/journal_kinds.h"
#include "track/run_figures.h"
#include "trackers/feed/feed_item.h"
#include "trackers/feed/tracker_feed.h"
#include "trackers/journal/journal_tracker.h"
#include "trackers/registry.h"

namespace accelerate::detail {

/// Takes warnings from any thread to wherever they are wanted at the moment.
class WarningTap {
 public:
  using Target = std::function<void(const std::string&)>;

  void set_target(Target target);
  void take(const LogRecord& record);

 private:
  std::mutex mutex_;
  Target target_;
};

struct RunTrackingOptions {
  std::vector<LogWith> log_with = {};
  bool is_main_process = true;
  /// Whether there is a journal.
  bool journal = true;
  /// Open it before anything is logged.
  bool opens_at_once = false;
  /// Empty if there is none.
  std::filesystem::path logging_dir = {};
  /// The name that was asked for.
  std::optional<std::string> run_name = std::nullopt;
  Environment environment = {};
  Logger logger = {};
  std::shared_ptr<WarningTap> warnings = std::make_shared<WarningTap>();
  /// Describes this process when a journal is opened, all but the run.
  std::function<JournalSessionInfo()> describe = {};
  /// From one set of figures of the machine and the ranks to the next; 0: none.
  std::chrono::milliseconds figures_interval{0};
  /// Number of this rank's steps so far; any thread calls it.
  std::function<std::int64_t()> num_steps = [] { return std::int64_t{0}; };
  std::int64_t rank = 0;
  /// Null in a world of one rank.
  std::shared_ptr<RankBoard> board = nullptr;
  /// Reports of ranks that hang or are slow, since the last call; may be empty.
  std::function<std::vector<std::string>()> rank_reports = {};
};

/// Where a run was when a checkpoint was made.
struct RunPosition {
  std::string run;
  /// The largest step that was logged; nothing without steps.
  std::optional<std::int64_t> step = std::nullopt;
};

/// An accelerator's trackers and journal. On all but the main process it only
/// leaves this rank's figures for the journal on the board. Functions are for
/// one thread.
class RunTracking {
 public:
  /// Throws ConfigError for what cannot be tracked with. A journal that cannot
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
  /// Whether anybody gets what is logged; if not, it need not be made.
  [[nodiscard]] bool is_active() const;
  /// Sets the item's time. The item is not to be changed afterwards.
  void push(const std::shared_ptr<TrackedItem>& item);
  void push(TrackedItem item) {
    push(std::make_shared<TrackedItem>(std::move(item)));
  }
  /// Logs values of a step without options.
  void log(TrackedValues values, std::optional<std::int64_t> step);
  /// Adds an event to the journal, in its turn, if there is one.
  void add_event(JournalEvent event, std::optional<std::int64_t> step);
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
  [[nodiscard]] std::filesystem::path run_dir() const;
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

  [[nodiscard]] std::filesystem::path journal_dir() const;
  bool begin_push(LogTime& time);
  void check_first_step(std::int64_t step);
  void rename_run();
  void go_on_after(const RunPosition& position);
  void name_run();
  void open_journal();
  [[nodiscard]] RunFiguresOptions figures_options() const;
  void start_figures();
  void close_on_failure(const std::string& what, const std::exception& error);
  [[nodiscard]] std::string description(const std::string& run) const;
  [[nodiscard]] JournalWriterOptions writer_options() const;
  void on_journal(std::function<void()> function, std::size_t num_bytes = 0);
  void note_done_checkpoints(bool all);
  void warn(const std::string& text) const;

  RunTrackingOptions options_;
  std::vector<ChosenTracker> chosen_;
  TrackerFeed::Trackers trackers_;
  std::string project_name_;
  bool has_project_ = false;
  std::string run_;
  // Whether the run's name is known outside: in a checkpoint or the program.
  mutable bool has_shown_name_ = false;
  std::shared_ptr<JournalTracker> journal_;
  // What log() touches, side by side.
  std::optional<std::int64_t> last_step_;
  // The step after which the run was resumed, until a step is logged.
  std::optional<std::int64_t> resumed_after_;
  std::vector<PendingCheckpoint> pending_checkpoints_;
  bool has_finished_ = false;
  // Last, so that their threads end first.
  std::unique_ptr<TrackerFeed> journal_feed_;
  std::unique_ptr<TrackerFeed> feed_;
  std::unique_ptr<RunFigures> figures_;
};

}  // namespace accelerate::detail
