#include "track/run_tracking.h"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "track/run_name.h"

namespace accelerate::detail {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "[trackers] ";

double unix_now() {
  return std::chrono::duration<double>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// What programs get where there is no tracker.
class BlankTracker final : public GeneralTracker {
 public:
  [[nodiscard]] std::string name() const override { return "blank"; }
};

// A package that was asked for by name is missed when it is started; "all" has
// what needs none.
IsInstalled is_installed(const std::vector<LogWith>& log_with) {
  return [&log_with](const TrackerClass& each) {
    if (!each.needs_python) return true;
    return std::any_of(
        log_with.begin(), log_with.end(), [&](const LogWith& wanted) {
          const auto* const name = std::get_if<std::string>(&wanted);
          return name && *name == each.name;
        });
  };
}

}  // namespace

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

RunTracking::RunTracking(RunTrackingOptions options)
    : options_(std::move(options)) {
  if (options_.run_name) require_run_name(*options_.run_name);
  if (options_.figures_interval.count() < 0) {
    throw ConfigError(format(
        "[track] figures_interval is {} ms; give the time between two samples, "
        "or 0 for none",
        options_.figures_interval.count()));
  }
  chosen_ = filter_trackers(
      options_.log_with, options_.logging_dir, is_installed(options_.log_with));
  if (options_.opens_at_once) open_journal();
  if (!options_.is_main_process && options_.board) start_figures();
}

RunTracking::~RunTracking() { finish(); }

void RunTracking::warn(const std::string& text) const {
  const std::string_view all = text;
  options_.logger.log(
      LogLevel::warning,
      "trackers",
      all.starts_with(kPrefix) ? all.substr(kPrefix.size()) : all);
}

fs::path RunTracking::journal_dir() const {
  return options_.logging_dir.empty() ? fs::path("runs") : options_.logging_dir;
}

void RunTracking::name_run() {
  if (!run_.empty()) return;
  run_ = options_.run_name
      ? *options_.run_name
      : make_run_name(project_name_.empty() ? program_name() : project_name_);
}

std::string RunTracking::description(const std::string& run) const {
  JournalSessionInfo info =
      options_.describe ? options_.describe() : JournalSessionInfo();
  info.run = run;
  return to_description(info);
}

JournalWriterOptions RunTracking::writer_options() const {
  JournalWriterOptions options;
  options.report = [logger = options_.logger](const std::string& line) {
    logger.log(LogLevel::warning, "track", line);
  };
  return options;
}

void RunTracking::close_on_failure(
    const std::string& what,
    const std::exception& error) {
  options_.logger.log(
      LogLevel::warning,
      "track",
      format("{}: {}; training goes on", what, error.what()));
}

void RunTracking::open_journal() {
  if (!options_.is_main_process || !options_.journal || journal_feed_ ||
      has_finished_) {
    return;
  }
  name_run();
  try {
    journal_ = std::make_shared<JournalTracker>(
        journal_dir() / run_, description(run_), writer_options());
  } catch (const Error& error) {
    options_.journal = false;
    close_on_failure("there is no journal of this run", error);
    return;
  }
  TrackerFeedOptions options{
      .when_full = WhenFull::wait,
      .where_else = "this is not in the journal",
      .warn = [this](const std::string& text) { warn(text); }};
  journal_feed_ = std::make_unique<TrackerFeed>(
      TrackerFeed::Trackers{journal_}, std::move(options));
  // A writer that reports a failure must not wait for itself.
  options_.warnings->set_target([feed = journal_feed_.get(),
                                 journal = journal_](const std::string& text) {
    const LogTime time{std::nullopt, unix_now()};
    feed->push_call_if_room(
        [journal, time, event = warning_event(text)] {
          journal->add(event, time);
        },
        text.size());
  });
  start_figures();
}

RunFiguresOptions RunTracking::figures_options() const {
  RunFiguresOptions options{
      .interval = options_.figures_interval,
      .rank = options_.rank,
      .num_steps = options_.num_steps,
      .make_reader = [] { return SystemReader("/"); },
      .board = options_.board,
      .rank_reports = options_.rank_reports};
  if (!options_.is_main_process) return options;
  options.make_reader = [] { return SystemReader("/", Nvml::load()); };
  // The feed does this where the journal is by then.
  options.report = [feed = journal_feed_.get(), journal = journal_](
                       JournalEvent event, double seconds) {
    const std::size_t num_bytes = event.body.size();
    feed->push_call_if_room(
        [journal, event = std::move(event), seconds] {
          journal->add(event, {std::nullopt, seconds});
        },
        num_bytes);
  };
  options.warn = [this](const std::string& text) { warn(text); };
  return options;
}

void RunTracking::start_figures() {
  if (!options_.journal || options_.figures_interval.count() == 0) return;
  try {
    figures_ = std::make_unique<RunFigures>(figures_options());
  } catch (const std::system_error& error) {
    close_on_failure("there are no figures of this run", error);
  }
}

// A journal that was opened before the project's name was known has the
// program's name.
void RunTracking::rename_run() {
  if (!journal_feed_ || has_finished_ || has_shown_name_ || options_.run_name ||
      project_name_.empty())
    return;
  const std::string run = make_run_name(project_name_);
  try {
    journal_feed_->run([&] {
      journal_->move_to(journal_dir() / run, description(run), std::nullopt);
    });
    run_ = run;
  } catch (const Error& error) {
    close_on_failure("the run keeps the program's name", error);
  }
}

void RunTracking::init_trackers(
    const std::string& project_name,
    const std::optional<TrackedValues>& config,
    const TrackerKwargs& init_kwargs) {
  if (has_project_) {
    throw ConfigError(
        "[track] init_trackers() was called before; call it once");
  }
  has_project_ = true;
  project_name_ = project_name;
  if (!options_.is_main_process) return;
  rename_run();
  open_journal();
  add_event(project_event(project_name), std::nullopt);
  if (journal_feed_ && config)
    journal_feed_->push(std::make_shared<TrackedItem>(
        TrackedItem{{std::nullopt, unix_now()}, TrackedConfig{*config}}));
  const auto patience = std::make_shared<TrackerPatience>();
  TrackerRequest request{
      .project_name = project_name,
      .logging_dir = options_.logging_dir,
      .init_kwargs = {},
      .environment = options_.environment,
      .begin = unix_now(),
      .patience = patience,
      .warn = [this](const std::string& text) { warn(text); }};
  TrackerFeed::Trackers trackers;
  for (const ChosenTracker& each : chosen_) {
    if (each.instance) {
      trackers.push_back(each.instance);
      continue;
    }
    const auto kwargs = init_kwargs.find(each.name);
    request.init_kwargs =
        kwargs == init_kwargs.end() ? TrackedValues() : kwargs->second;
    trackers.push_back(find_tracker_class(each.name)->make(request));
  }
  if (trackers.empty()) return;
  TrackerFeedOptions options{
      .where_else = format(
          "what it lost is in the run's journal, which \"accelerate-cpp replay "
          "{}\" sends to trackers",
          run_dir()),
      .warn = [this](const std::string& text) { warn(text); },
      .patience = patience};
  if (!journal_feed_) options.where_else = "there is no journal that has it";
  auto feed = std::make_unique<TrackerFeed>(trackers, std::move(options));
  feed->start(config);
  trackers_ = std::move(trackers);
  feed_ = std::move(feed);
}

bool RunTracking::is_active() const {
  if (has_finished_) return false;
  if (journal_feed_ || feed_) return true;
  return options_.is_main_process && options_.journal;
}

// Sets the time. Returns false if nobody gets what is pushed.
bool RunTracking::begin_push(LogTime& time) {
  if (!is_active()) return false;
  if (!journal_feed_ && options_.journal) open_journal();
  if (!pending_checkpoints_.empty()) note_done_checkpoints(false);
  time.seconds = unix_now();
  if (time.step) {
    if (resumed_after_) check_first_step(*time.step);
    last_step_ = std::max(last_step_.value_or(*time.step), *time.step);
  }
  return true;
}

// A program that counts its steps from the start again makes void what it logged
// before, without having meant it.
void RunTracking::check_first_step(std::int64_t step) {
  const std::int64_t last = *std::exchange(resumed_after_, std::nullopt);
  if (step > last) return;
  warn(format(
      "the run {} was resumed after step {}, but the first step that is logged "
      "is {}: what the run logged for step {} and later ones is replaced. If "
      "the program counts steps from the start again, save its counter with "
      "register_for_checkpointing(\"step\", step)",
      run_,
      last,
      step,
      step));
}

void RunTracking::push(const std::shared_ptr<TrackedItem>& item) {
  if (!begin_push(item->time)) return;
  if (journal_feed_) journal_feed_->push(item);
  if (feed_) feed_->push(item);
}

void RunTracking::log(TrackedValues values, std::optional<std::int64_t> step) {
  LogTime time{step, 0};
  if (!are_real_numbers(values)) {
    push({time, std::move(values)});
    return;
  }
  if (!begin_push(time)) return;
  if (journal_feed_) journal_feed_->push_numbers(values, time);
  if (feed_) feed_->push_numbers(values, time);
}

void RunTracking::on_journal(
    std::function<void()> function,
    std::size_t num_bytes) {
  journal_feed_->push_call(std::move(function), num_bytes);
}

void RunTracking::add_event(
    JournalEvent event,
    std::optional<std::int64_t> step) {
  if (!journal_feed_ || has_finished_) return;
  const std::size_t num_bytes = event.name.size() + event.body.size();
  on_journal(
      [journal = journal_, event = std::move(event), step, time = unix_now()] {
        journal->add(event, {step, time});
      },
      num_bytes);
}

void RunTracking::add_figures(const TrackedValues& figures) {
  LogTime time{last_step_, 0};
  if (begin_push(time) && journal_feed_)
    journal_feed_->push_numbers(figures, time);
}

void RunTracking::add_profile(const TrackedTable& table) {
  add_event(profile_event(table), last_step_);
}

void RunTracking::note_checkpoint(
    std::string path,
    std::function<bool()> is_done) {
  if (!journal_feed_ || has_finished_) return;
  pending_checkpoints_.push_back(
      {std::move(path), last_step_, std::move(is_done)});
  note_done_checkpoints(false);
}

void RunTracking::note_done_checkpoints(bool all) {
  std::erase_if(pending_checkpoints_, [&](const PendingCheckpoint& each) {
    if (!each.is_done()) return all;
    add_event(checkpoint_event(each.path), each.step);
    return true;
  });
}

std::shared_ptr<GeneralTracker> RunTracking::get_tracker(
    const std::string& name) {
  if (trackers_.empty()) return std::make_shared<BlankTracker>();
  for (const auto& each : trackers_) {
    if (each->name() != name) continue;
    feed_->flush();
    return each;
  }
  throw ConfigError(format(
      "[track] {} is not an available tracker stored inside the "
      "`Accelerator`.",
      printable(name)));
}

fs::path RunTracking::run_dir() const {
  has_shown_name_ = has_shown_name_ || journal_feed_;
  return journal_feed_ ? journal_dir() / run_ : fs::path();
}

void RunTracking::flush() {
  if (feed_) feed_->flush();
  if (journal_feed_) journal_feed_->run([this] { journal_->sync(); });
}

void RunTracking::finish() {
  if (std::exchange(has_finished_, true)) return;
  figures_.reset();  // its thread uses the journal's feed
  if (feed_) feed_->finish();
  if (!journal_feed_) return;
  has_finished_ = false;
  note_done_checkpoints(true);
  has_finished_ = true;
  options_.warnings->set_target(nullptr);
  journal_feed_->finish();
}

std::optional<RunPosition> RunTracking::position() const {
  if (!journal_feed_) return std::nullopt;
  has_shown_name_ = true;
  return RunPosition{run_, last_step_};
}

void RunTracking::go_on_after(const RunPosition& position) {
  has_shown_name_ = true;
  last_step_ = resumed_after_ = position.step;
}

void RunTracking::resume(const RunPosition& position) {
  if (!options_.is_main_process || !options_.journal || has_finished_) return;
  // A run of its own name is a new one that begins from a checkpoint.
  if (options_.run_name && *options_.run_name != position.run) return;
  if (journal_feed_ && run_ == position.run) {
    if (position.step) {
      journal_feed_->run([&] { journal_->rewind_to(*position.step); });
    }
    go_on_after(position);
    return;
  }
  const fs::path directory = journal_dir() / position.run;
  std::error_code ignored;
  if (position.run.empty() || fs::path(position.run).has_parent_path() ||
      !fs::is_regular_file(journal_path(directory), ignored)) {
    return;
  }
  try {
    if (journal_feed_) {
      journal_feed_->run([&] {
        journal_->move_to(directory, description(position.run), position.step);
      });
      run_ = position.run;
    } else {
      run_ = position.run;
      open_journal();
      if (journal_feed_ && position.step)
        journal_feed_->run([&] { journal_->rewind_to(*position.step); });
    }
    go_on_after(position);
  } catch (const Error& error) {
    close_on_failure(
        format("the journal of the run {} is not continued", position.run),
        error);
  }
}

}  // namespace accelerate::detail
