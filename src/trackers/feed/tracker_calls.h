#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <accelerate/tracker.h>

#include "trackers/feed/feed_item.h"
#include "trackers/feed/tracker_feed_options.h"
#include "trackers/tracker_patience.h"

namespace accelerate::detail {

/// A feed's trackers, and the time that each has cost: a failing tracker causes
/// one warning and continues to be called; one that makes the feed wait pauses
/// first, and is given up at the end. For one thread, except begin_end().
class TrackerCalls {
 public:
  using Trackers = std::vector<std::shared_ptr<GeneralTracker>>;

  /// `options` must outlive this object.
  TrackerCalls(Trackers trackers, const TrackerFeedOptions& options);

  [[nodiscard]] const Trackers& trackers() const { return trackers_; }
  /// See TrackerFeed::start().
  void start(const std::optional<TrackedValues>& config);
  /// Passes an item to all trackers, and counts those that miss it.
  void log_item(const TrackedItem& item);
  /// Calls a function with each tracker; `what` names it in warnings.
  void for_each(
      const std::function<void(GeneralTracker&)>& function,
      std::string_view what);
  /// Finishes the trackers, and reports how often they failed.
  void finish();
  /// Begins the time that the options allow for the remaining work.
  void begin_end();

 private:
  using Clock = TrackerPatience::Clock;
  struct Fed {
    bool is_running = true;
    bool is_given_up = false;  // it made finish() wait
    Clock::time_point rests_until = Clock::time_point::min();
    std::uint64_t num_failures = 0;
    std::uint64_t num_missed = 0;
  };

  template <class Function>
  bool call(std::size_t index, std::string_view what, Function function);
  [[nodiscard]] bool may_call(const Fed& fed) const;
  void
  note_failure(std::size_t index, std::string_view what, Clock::duration time);
  void report_totals() const;
  void warn(const std::string& text) const;

  Trackers trackers_;
  const TrackerFeedOptions& options_;
  std::vector<Fed> fed_;  // by tracker
  // The kinds that a tracker does not have, of which it was warned.
  std::set<std::pair<std::size_t, std::string_view>> without_;
  bool is_finishing_ = false;
  // max() before begin_end().
  std::atomic<Clock::time_point> end_ = Clock::time_point::max();
};

}  // namespace accelerate::detail
