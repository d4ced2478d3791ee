#include "track/run_figures.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

using std::chrono::milliseconds;

milliseconds sampling_time() {
  return std::chrono::duration_cast<milliseconds>(
      std::chrono::system_clock::now().time_since_epoch());
}

double since_1970_in_seconds(milliseconds time) {
  return static_cast<double>(time.count()) / 1000;
}

// How long rank 0 waits for what other ranks leave at the time of its own
// sample: their clocks differ, and messages travel.
milliseconds time_for_others(milliseconds interval) {
  return std::min(interval / 10, milliseconds(500));
}

}  // namespace

RunSampler::RunSampler(RunFiguresOptions options, double seconds)
    : options_(std::move(options)),
      reader_(options_.make_reader()),
      seconds_(seconds),
      mine_{.rank = options_.rank, .step = options_.num_steps()} {}

void RunSampler::sample(double seconds) {
  const std::int64_t step = options_.num_steps();
  const double elapsed = seconds - std::exchange(seconds_, seconds);
  // The clock may have been set back.
  mine_.steps_per_second =
      elapsed > 0 ? static_cast<double>(step - mine_.step) / elapsed : 0;
  mine_.step = step;
  mine_.memory_mb = reader_.process_mb().value_or(0);
  if (!reports()) return leave_on_board();
  system_ = reader_.figures();
  system_.push_back({"steps_per_second", mine_.steps_per_second});
}

void RunSampler::leave_on_board() {
  if (!has_board()) return;
  try {
    options_.board->put(mine_);
  } catch (const std::exception&) {
    // Rank 0, which may serve the store, has ended or will report the failure
    // itself.
    options_.board = nullptr;
  }
}

std::vector<JournalRank> RunSampler::all_ranks() {
  std::vector<JournalRank> ranks{mine_};
  if (!has_board()) return ranks;
  try {
    for (const JournalRank& each : options_.board->others())
      ranks.push_back(each);
  } catch (const std::exception& error) {
    options_.board = nullptr;
    if (options_.warn) {
      options_.warn(format(
          "[track] the journal has no more figures of other ranks: {}",
          error.what()));
    }
  }
  return ranks;
}

void RunSampler::report() {
  if (options_.rank_reports) {
    for (const std::string& text : options_.rank_reports())
      options_.report(warning_event(text), seconds_);
  }
  options_.report(system_event(system_), seconds_);
  options_.report(ranks_event(all_ranks()), seconds_);
}

milliseconds time_to_sample(milliseconds now, milliseconds interval) {
  const milliseconds earliest = now + (interval + milliseconds(1)) / 2;
  const milliseconds beyond = earliest % interval;
  const milliseconds next =
      beyond.count() == 0 ? earliest : earliest - beyond + interval;
  return next - now;
}

RunFigures::RunFigures(RunFiguresOptions options)
    : options_(std::move(options)), thread_([this] { run(); }) {}

RunFigures::~RunFigures() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool RunFigures::wait(milliseconds time) {
  std::unique_lock lock(mutex_);
  return !changed_.wait_for(lock, time, [this] { return is_ending_; });
}

void RunFigures::run() {
  const milliseconds interval = options_.interval;
  try {
    RunSampler sampler(
        std::move(options_), since_1970_in_seconds(sampling_time()));
    while (wait(time_to_sample(sampling_time(), interval))) {
      sampler.sample(since_1970_in_seconds(sampling_time()));
      if (!sampler.reports()) continue;
      if (sampler.has_board() && !wait(time_for_others(interval))) return;
      sampler.report();
    }
  } catch (const std::exception&) {
    // Training does not depend on this.
  }
}

}  // namespace accelerate::detail
