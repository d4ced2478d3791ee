#include "trackers/feed/tracker_calls.h"

#include <algorithm>
#include <exception>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

std::string message_of(const std::exception_ptr& problem) {
  try {
    std::rethrow_exception(problem);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

}  // namespace

TrackerCalls::TrackerCalls(Trackers trackers, const TrackerFeedOptions& options)
    : trackers_(std::move(trackers)),
      options_(options),
      fed_(trackers_.size()) {}

void TrackerCalls::start(const std::optional<TrackedValues>& config) {
  for (Fed& each : fed_) each.is_running = false;
  for (std::size_t i = 0; i < trackers_.size(); ++i) {
    trackers_[i]->start();
    fed_[i].is_running = true;
  }
  if (!config) return;
  const TrackedItem item{.content = TrackedConfig{*config}};
  for (const auto& tracker : trackers_) tracker->log_item(item);
}

// Whether a tracker may be called at the moment. At the end, each call gets its
// own time to wait.
bool TrackerCalls::may_call(const Fed& fed) const {
  if (!fed.is_running || fed.is_given_up) return false;
  if (!options_.patience) return true;
  const auto now = Clock::now();
  if (now < fed.rests_until && !is_finishing_) return false;
  const auto end = end_.load();
  if (end == Clock::time_point::max()) return true;
  if (now >= end) return false;
  options_.patience->end_by(std::min(end, now + options_.most_end_wait));
  return true;
}

// Returns false if the tracker may not be called at the moment.
template <class Function>
bool TrackerCalls::call(
    std::size_t index,
    std::string_view what,
    Function function) {
  if (!may_call(fed_[index])) return false;
  const auto begin = Clock::now();
  try {
    function(*trackers_[index]);
  } catch (...) {
    note_failure(index, what, Clock::now() - begin);
  }
  return true;
}

void TrackerCalls::log_item(const TrackedItem& item) {
  const std::string_view kind = kind_of(item);
  for (std::size_t i = 0; i < trackers_.size(); ++i) {
    const bool is_taken = call(i, kind, [&](GeneralTracker& each) {
      if (each.log_item(item) || !without_.emplace(i, kind).second) return;
      warn(format(
          "[trackers] {} has no {}; {}",
          each.name(),
          kind,
          options_.where_else));
    });
    if (!is_taken) ++fed_[i].num_missed;
  }
}

void TrackerCalls::for_each(
    const std::function<void(GeneralTracker&)>& function,
    std::string_view what) {
  for (std::size_t i = 0; i < trackers_.size(); ++i) call(i, what, function);
}

void TrackerCalls::finish() {
  is_finishing_ = true;
  for_each([](GeneralTracker& each) { each.finish(); }, "finish");
  report_totals();
}

void TrackerCalls::begin_end() {
  if (!options_.patience) return;
  const auto now = Clock::now();
  end_ = now + options_.most_end;
  options_.patience->end_by(now + options_.most_end_wait);
}

void TrackerCalls::note_failure(
    std::size_t index,
    std::string_view what,
    Clock::duration time) {
  Fed& fed = fed_[index];
  const bool is_ending = end_.load() != Clock::time_point::max();
  if (options_.patience && time >= options_.slow)
    fed.rests_until = Clock::now() + options_.rest_factor * time;
  fed.is_given_up = is_ending && options_.patience->is_over();
  if (++fed.num_failures > 1) return;
  warn(format(
      "[trackers] {} failed ({}): {}; training continues, and {}",
      trackers_[index]->name(),
      what,
      message_of(std::current_exception()),
      options_.where_else));
}

void TrackerCalls::report_totals() const {
  for (std::size_t i = 0; i < trackers_.size(); ++i) {
    const Fed& fed = fed_[i];
    if (fed.num_failures > 1) {
      warn(format(
          "[trackers] {} failed {} times",
          trackers_[i]->name(),
          fed.num_failures));
    }
    if (fed.is_running && fed.num_missed > 0) {
      warn(format(
          "[trackers] {} values, images and the like were not passed to {}, "
          "which did not respond in time; {}",
          fed.num_missed,
          trackers_[i]->name(),
          options_.where_else));
    }
  }
}

void TrackerCalls::warn(const std::string& text) const {
  if (options_.warn) options_.warn(text);
}

}  // namespace accelerate::detail
