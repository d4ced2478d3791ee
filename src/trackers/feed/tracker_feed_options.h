#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "trackers/tracker_patience.h"

namespace accelerate::detail {

/// How a feed treats an item for which there is no room.
enum class WhenFull {
  drop,  ///< it is lost to these trackers and counted; one warning
  wait,  ///< the caller waits until there is room
};

struct TrackerFeedOptions {
  /// Approximate memory that waiting items may take.
  std::size_t most_waiting_bytes = std::size_t{256} << 20U;
  WhenFull when_full = WhenFull::drop;
  /// How often the thread polls for items. It is not woken for each one: that
  /// would cost the training loop ten times as much as everything else.
  std::chrono::milliseconds interval{50};
  /// The end of warnings about values that these trackers lose.
  std::string where_else = "what it lost is in the run's journal";
  /// Receives warnings, on any thread.
  std::function<void(const std::string&)> warn = {};
  /// The trackers' patience, if the feed is to bound their waits. A tracker
  /// whose call fails after `slow` then gets nothing for `rest_factor` times as
  /// long, and finish() takes at most `most_end`, of which waits for others
  /// that do not answer take at most `most_end_wait` each. Null: no bounds.
  std::shared_ptr<TrackerPatience> patience = nullptr;
  std::chrono::milliseconds slow{1000};
  int rest_factor = 10;
  std::chrono::milliseconds most_end_wait{30'000};
  std::chrono::milliseconds most_end{600'000};
};

}  // namespace accelerate::detail
