#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
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
#include "trackers/feed/tracker_feed.h"
#include "trackers/journal/journal_tracker.h"
#include "trackers/registry.h"

namespace accelerate::detail {

/// Forwards warnings from any thread to their current target.
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
  /// The requested name.
  std::optional<std::string> run_name = std::nullopt;
  Environment environment = {};
  Logger logger = {};
  std::shared_ptr<WarningTap> warnings = std::make_shared<WarningTap>();
  /// Describes this process, except the run's name, when a journal is opened.
  std::function<JournalSessionInfo()> describe = {};
  /// Time between samples of the machine's and the ranks' figures; 0: none.
  std::chrono::milliseconds figures_interval{0};
  /// Number of this rank's steps so far; called on any thread.
  std::function<std::int64_t()> num_steps = [] { return std::int64_t{0}; };
  std::int64_t rank = 0;
  /// Null in a world of one rank.
  std::shared_ptr<RankBoard> board = nullptr;
  /// Reports of ranks that hang or are slow, since the last call; may be empty.
  std::function<std::vector<std::string>()> rank_reports = {};
};

/// The position of a run when a checkpoint was made.
struct RunPosition {
  std::string run;
  /// The largest step that was logged; nothing without steps.
  std::optional<std::int64_t> step = std::nullopt;
};

/// The time in seconds since 1970.
double unix_now();

/// Returns what logs the warnings of trackers and feeds, on any thread.
std::function<void(const std::string&)> tracker_warnings(Logger logger);

/// The journal of a run: its directory, which has the run's name, the feed that
/// writes it, and the figures of the machine and the ranks. On all but the main
/// process there is no journal; a rank leaves its figures on the board. Functions
/// are for one thread.
class RunJournal {
 public:
  /// `options` must outlive this object.
  explicit RunJournal(const RunTrackingOptions& options);
  RunJournal(const RunJournal&) = delete;
  RunJournal& operator=(const RunJournal&) = delete;

  /// Opens the journal if the options say so; on other ranks, begins to leave
  /// figures.
  void begin();
  /// Opens the journal if there is to be one and it is not open. A journal that
  /// cannot be opened is a warning.
  void open();
  /// Opens the journal like open(); from now on, the run has the project's
  /// name, unless its own is already known outside.
  void open_for(const std::string& project_name);
  /// Whether this process has a journal, or would open it.
  [[nodiscard]] bool is_wanted() const { return is_wanted_; }
  /// The feed that writes the journal, even once it is finished; null before it
  /// is opened.
  [[nodiscard]] TrackerFeed* feed() const { return feed_.get(); }
  [[nodiscard]] const std::string& run() const { return run_; }
  /// The run's name, for a checkpoint or the program; from now on, the run
  /// keeps it.
  [[nodiscard]] const std::string& show_run() const;
  /// Empty without a journal.
  [[nodiscard]] std::filesystem::path run_dir() const;

  /// Adds an event in its turn, if the journal is open.
  void add(JournalEvent event, std::optional<std::int64_t> step);
  /// Continues the journal of that run, if there is one here.
  bool resume(const RunPosition& position);
  void flush();
  /// Ends the figures, whose thread uses the feed.
  void end_figures() { figures_.reset(); }
  void finish();

 private:
  [[nodiscard]] std::filesystem::path directory_of(
      const std::string& run) const;
  [[nodiscard]] std::string description(const std::string& run) const;
  void move_to(const std::string& run, std::optional<std::int64_t> last_step);
  void rewind_to(std::optional<std::int64_t> step);
  void tap_warnings();
  [[nodiscard]] RunFiguresOptions figures_options() const;
  void start_figures();
  void warn_of(const std::string& what, const std::exception& error) const;

  const RunTrackingOptions& options_;
  std::string project_name_;
  std::string run_;
  // Whether the run's name is known outside.
  mutable bool has_shown_run_ = false;
  std::shared_ptr<JournalTracker> journal_;
  bool is_wanted_;
  bool has_finished_ = false;
  // Last, so that their threads end first.
  std::unique_ptr<TrackerFeed> feed_;
  std::unique_ptr<RunFigures> figures_;
};

}  // namespace accelerate::detail
