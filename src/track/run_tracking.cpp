#include "track/run_tracking.h"

#include <algorithm>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "track/run_name.h"

namespace accelerate::detail {

namespace {

// The tracker that programs get where there is none.
class BlankTracker final : public GeneralTracker {
 public:
  [[nodiscard]] std::string name() const override { return "blank"; }
};

// A package requested by name is only found missing when it is started; "all"
// selects trackers that need none.
IsInstalled is_installed(const std::vector<LogWith>& log_with) {
  return [&log_with](const TrackerClass& each) {
    if (!each.needs_python) return true;
    return std::ranges::any_of(log_with, [&](const LogWith& wanted) {
      const auto* const name = std::get_if<std::string>(&wanted);
      return name && *name == each.name;
    });
  };
}

}  // namespace

RunTracking::RunTracking(RunTrackingOptions options)
    : options_(std::move(options)), journal_(options_) {
  if (options_.run_name) require_run_name(*options_.run_name);
  if (options_.figures_interval.count() < 0) {
    throw ConfigError(format(
        "[track] figures_interval must be the time between two samples, or 0 "
        "for none, but is {} ms",
        options_.figures_interval.count()));
  }
  chosen_ = filter_trackers(
      options_.log_with, options_.logging_dir, is_installed(options_.log_with));
  journal_.begin();
}

RunTracking::~RunTracking() { finish(); }

void RunTracking::init_trackers(
    const std::string& project_name,
    const std::optional<TrackedValues>& config,
    const TrackerKwargs& init_kwargs) {
  if (has_project_) {
    throw ConfigError(
        "[track] init_trackers() must be called once, but was called twice");
  }
  has_project_ = true;
  if (!options_.is_main_process) return;
  journal_.open_for(project_name);
  add_event(project_event(project_name), std::nullopt);
  if (journal_.feed() && config)
    journal_.feed()->push(std::make_shared<TrackedItem>(
        TrackedItem{{std::nullopt, unix_now()}, TrackedConfig{*config}}));
  const auto patience = std::make_shared<TrackerPatience>();
  TrackerRequest request{
      .project_name = project_name,
      .logging_dir = options_.logging_dir,
      .init_kwargs = {},
      .environment = options_.environment,
      .begin = unix_now(),
      .patience = patience,
      .warn = tracker_warnings(options_.logger)};
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
      .warn = tracker_warnings(options_.logger),
      .patience = patience};
  if (!journal_.feed()) options.where_else = "there is no journal that has it";
  auto feed = std::make_unique<TrackerFeed>(trackers, std::move(options));
  feed->start(config);
  trackers_ = std::move(trackers);
  feed_ = std::move(feed);
}

bool RunTracking::is_active() const {
  return !has_finished_ && (feed_ || journal_.is_wanted());
}

// Sets the time. Returns false if no tracker or journal receives pushed items.
bool RunTracking::begin_push(LogTime& time) {
  if (!is_active()) return false;
  if (!journal_.feed()) journal_.open();
  if (!pending_checkpoints_.empty()) note_done_checkpoints(false);
  time.seconds = unix_now();
  if (time.step) {
    if (resumed_after_) check_first_step(*time.step);
    last_step_ = std::max(last_step_.value_or(*time.step), *time.step);
  }
  return true;
}

// A program that counts its steps from the start again unintentionally voids
// what it logged before.
void RunTracking::check_first_step(std::int64_t step) {
  const std::int64_t last = *std::exchange(resumed_after_, std::nullopt);
  if (step > last) return;
  tracker_warnings(options_.logger)(format(
      "the run {} was resumed after step {}, but the first step that is logged "
      "is {}: what the run logged for step {} and later ones is replaced. If "
      "the program counts steps from the start again, save its counter with "
      "register_for_checkpointing(\"step\", step)",
      journal_.run(),
      last,
      step,
      step));
}

void RunTracking::push(const std::shared_ptr<TrackedItem>& item) {
  if (!begin_push(item->time)) return;
  if (TrackerFeed* const feed = journal_.feed()) feed->push(item);
  if (feed_) feed_->push(item);
}

void RunTracking::log(TrackedValues values, std::optional<std::int64_t> step) {
  LogTime time{step, 0};
  if (!are_real_numbers(values)) {
    push({time, std::move(values)});
    return;
  }
  if (!begin_push(time)) return;
  if (TrackerFeed* const feed = journal_.feed())
    feed->push_numbers(values, time);
  if (feed_) feed_->push_numbers(values, time);
}

void RunTracking::add_figures(const TrackedValues& figures) {
  LogTime time{last_step_, 0};
  if (begin_push(time) && journal_.feed())
    journal_.feed()->push_numbers(figures, time);
}

void RunTracking::add_profile(const TrackedTable& table) {
  add_event(profile_event(table), last_step_);
}

void RunTracking::note_checkpoint(
    std::string path,
    std::function<bool()> is_done) {
  if (!journal_.feed() || has_finished_) return;
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

void RunTracking::flush() {
  if (feed_) feed_->flush();
  journal_.flush();
}

void RunTracking::finish() {
  if (std::exchange(has_finished_, true)) return;
  journal_.end_figures();
  if (feed_) feed_->finish();
  note_done_checkpoints(true);
  journal_.finish();
}

std::optional<RunPosition> RunTracking::position() const {
  if (!journal_.feed()) return std::nullopt;
  return RunPosition{journal_.show_run(), last_step_};
}

void RunTracking::resume(const RunPosition& position) {
  if (journal_.resume(position)) last_step_ = resumed_after_ = position.step;
}

}  // namespace accelerate::detail
