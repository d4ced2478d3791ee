#include "track/run_journal.h"

#include <system_error>
#include <utility>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "track/run_name.h"

namespace accelerate::detail {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "[trackers] ";

}  // namespace

double unix_now() {
  return std::chrono::duration<double>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

void WarningTap::set_target(Target target) {
  const std::lock_guard lock(mutex_);
  target_ = std::move(target);
}

void WarningTap::take(const LogRecord& record) {
  if (record.level < LogLevel::warning) return;
  const std::lock_guard lock(mutex_);
  if (!target_) return;
  target_(
      record.area.empty() ? std::string(record.message)
                          : format("[{}] {}", record.area, record.message));
}

std::function<void(const std::string&)> tracker_warnings(Logger logger) {
  return [logger = std::move(logger)](const std::string& text) {
    const std::string_view all = text;
    logger.log(
        LogLevel::warning,
        "trackers",
        all.starts_with(kPrefix) ? all.substr(kPrefix.size()) : all);
  };
}

RunJournal::RunJournal(const RunTrackingOptions& options)
    : options_(options),
      is_wanted_(options.is_main_process && options.journal) {}

void RunJournal::begin() {
  if (options_.opens_at_once) open();
  if (!options_.is_main_process && options_.board && options_.journal)
    start_figures();
}

fs::path RunJournal::directory_of(const std::string& run) const {
  return (options_.logging_dir.empty() ? fs::path("runs")
                                       : options_.logging_dir) /
      run;
}

const std::string& RunJournal::show_run() const {
  has_shown_run_ = true;
  return run_;
}

fs::path RunJournal::run_dir() const {
  return feed_ ? directory_of(show_run()) : fs::path();
}

std::string RunJournal::description(const std::string& run) const {
  JournalSessionInfo info =
      options_.describe ? options_.describe() : JournalSessionInfo();
  info.run = run;
  return to_description(info);
}

void RunJournal::warn_of(const std::string& what, const std::exception& error)
    const {
  options_.logger.log(
      LogLevel::warning,
      "track",
      format("{}: {}; training continues", what, error.what()));
}

void RunJournal::open() {
  if (!is_wanted_ || feed_ || has_finished_) return;
  if (run_.empty()) {
    run_ = options_.run_name
        ? *options_.run_name
        : make_run_name(project_name_.empty() ? program_name() : project_name_);
  }
  JournalWriterOptions writer;
  writer.report = [logger = options_.logger](const std::string& line) {
    logger.log(LogLevel::warning, "track", line);
  };
  try {
    journal_ = std::make_shared<JournalTracker>(
        directory_of(run_), description(run_), std::move(writer));
  } catch (const Error& error) {
    is_wanted_ = false;
    warn_of("there is no journal of this run", error);
    return;
  }
  feed_ = std::make_unique<TrackerFeed>(
      TrackerFeed::Trackers{journal_},
      TrackerFeedOptions{
          .when_full = WhenFull::wait,
          .where_else = "this is not in the journal",
          .warn = tracker_warnings(options_.logger)});
  tap_warnings();
  start_figures();
}

void RunJournal::tap_warnings() {
  // A writer that reports a failure must not wait for itself.
  options_.warnings->set_target(
      [feed = feed_.get(), journal = journal_](const std::string& text) {
        const LogTime time{std::nullopt, unix_now()};
        feed->push_call_if_room(
            [journal, time, event = warning_event(text)] {
              journal->add(event, time);
            },
            text.size());
      });
}

RunFiguresOptions RunJournal::figures_options() const {
  RunFiguresOptions options{
      .interval = options_.figures_interval,
      .rank = options_.rank,
      .num_steps = options_.num_steps,
      .make_reader = [] { return SystemReader("/"); },
      .board = options_.board,
      .rank_reports = options_.rank_reports};
  if (!options_.is_main_process) return options;
  options.make_reader = [] { return SystemReader("/", Nvml::load()); };
  // The feed calls this wherever the journal is by then.
  options.report = [feed = feed_.get(), journal = journal_](
                       JournalEvent event, double seconds) {
    const std::size_t num_bytes = event.body.size();
    feed->push_call_if_room(
        [journal, event = std::move(event), seconds] {
          journal->add(event, {std::nullopt, seconds});
        },
        num_bytes);
  };
  options.warn = tracker_warnings(options_.logger);
  return options;
}

void RunJournal::start_figures() {
  if (options_.figures_interval.count() == 0) return;
  try {
    figures_ = std::make_unique<RunFigures>(figures_options());
  } catch (const std::system_error& error) {
    warn_of("there are no figures of this run", error);
  }
}

void RunJournal::move_to(
    const std::string& run,
    std::optional<std::int64_t> last_step) {
  feed_->run([&] {
    journal_->move_to(directory_of(run), description(run), last_step);
  });
  run_ = run;
}

// A journal that was opened before the project's name was known has the
// program's name.
void RunJournal::open_for(const std::string& project_name) {
  project_name_ = project_name;
  if (!feed_) return open();
  if (has_finished_ || has_shown_run_ || options_.run_name ||
      project_name.empty())
    return;
  try {
    move_to(make_run_name(project_name), std::nullopt);
  } catch (const Error& error) {
    warn_of("the run keeps the program's name", error);
  }
}

void RunJournal::add(JournalEvent event, std::optional<std::int64_t> step) {
  if (!feed_ || has_finished_) return;
  const std::size_t num_bytes = event.name.size() + event.body.size();
  feed_->push_call(
      [journal = journal_, event = std::move(event), step, time = unix_now()] {
        journal->add(event, {step, time});
      },
      num_bytes);
}

void RunJournal::rewind_to(std::optional<std::int64_t> step) {
  if (feed_ && step) feed_->run([&] { journal_->rewind_to(*step); });
}

bool RunJournal::resume(const RunPosition& position) {
  if (!is_wanted_ || has_finished_) return false;
  // A run of its own name is a new one that begins from a checkpoint.
  if (options_.run_name && *options_.run_name != position.run) return false;
  if (feed_ && run_ == position.run) {
    rewind_to(position.step);
    has_shown_run_ = true;
    return true;
  }
  std::error_code ignored;
  if (position.run.empty() || fs::path(position.run).has_parent_path() ||
      !fs::is_regular_file(journal_path(directory_of(position.run)), ignored)) {
    return false;
  }
  try {
    if (feed_) {
      move_to(position.run, position.step);
    } else {
      run_ = position.run;
      open();
      rewind_to(position.step);
    }
  } catch (const Error& error) {
    warn_of(
        format("the journal of the run {} is not continued", position.run),
        error);
    return false;
  }
  has_shown_run_ = true;
  return true;
}

void RunJournal::flush() {
  if (feed_) feed_->run([this] { journal_->sync(); });
}

void RunJournal::finish() {
  if (std::exchange(has_finished_, true) || !feed_) return;
  options_.warnings->set_target(nullptr);
  feed_->finish();
}

}  // namespace accelerate::detail
