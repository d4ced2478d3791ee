#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include <accelerate/tracker.h>

#include "trackers/feed_item.h"
#include "trackers/number_buffer.h"

namespace accelerate::detail {

/// What a feed does with an item for which it has no room.
enum class WhenFull {
  drop,  ///< it is lost to these trackers, counted, and warned about once
  wait,  ///< the caller waits until there is room
};

struct TrackerFeedOptions {
  /// About as much memory as waiting items may take.
  std::size_t most_waiting_bytes = std::size_t{256} << 20U;
  WhenFull when_full = WhenFull::drop;
  /// How often the thread looks for items. Nobody wakes it for one: that would
  /// cost the loop ten times as much as all else.
  std::chrono::milliseconds interval{50};
  /// What warnings say of values that are lost to these trackers.
  std::string where_else = "what it lost is in the run's journal";
  /// Gets warnings, on any thread.
  std::function<void(const std::string&)> warn = {};
};

/// Owns trackers and calls them on one thread, with what was logged, in its
/// order. Trackers that throw are warned about once each and go on being
/// called. They are flushed whenever nothing more waits. Thread-safe.
class TrackerFeed {
 public:
  using Options = TrackerFeedOptions;
  using Trackers = std::vector<std::shared_ptr<GeneralTracker>>;

  explicit TrackerFeed(Trackers trackers, Options options = {});
  TrackerFeed(const TrackerFeed&) = delete;
  TrackerFeed& operator=(const TrackerFeed&) = delete;
  /// As finish().
  ~TrackerFeed();

  /// Starts the trackers, gives them the configuration unless it is empty, and
  /// returns when they are done. Throws the first one's exception.
  void start(const TrackedValues& config);
  void push(std::shared_ptr<const FeedItem> item);
  /// The same for real numbers, which are copied to where they wait: the caller
  /// shares no memory with the thread, which is what costs most.
  void push_numbers(const TrackedValues& numbers, const LogTime& time);
  /// As push() if there is room for it; else it is lost without a word.
  void push_if_room(std::shared_ptr<const FeedItem> item);
  /// Runs a function on the feed's thread after what was pushed before, and
  /// waits for it. Throws what it throws. Not to be called by trackers.
  void run(std::function<void()> function);
  /// Returns when the trackers have got and flushed all that was pushed before.
  void flush();
  /// Hands on what waits, finishes the trackers and ends the thread. What is
  /// pushed afterwards is ignored.
  void finish();

  [[nodiscard]] const Trackers& trackers() const { return trackers_; }
  /// Items that were lost because there was no room.
  [[nodiscard]] std::uint64_t num_dropped() const;

 private:
  struct Call {
    std::function<void()> function;
  };
  // Those in the buffer up to there.
  struct Numbers {
    std::size_t end = 0;
  };
  using Entry = std::variant<std::shared_ptr<const FeedItem>, Call, Numbers>;

  bool has_room(std::unique_lock<std::mutex>& lock, std::size_t size);
  [[nodiscard]] bool fits(std::size_t size) const;
  [[nodiscard]] bool is_empty() const;
  void end_numbers();
  void enqueue(std::shared_ptr<const FeedItem> item, std::size_t size);
  void work();
  void await_items(std::unique_lock<std::mutex>& lock);
  void take(Entry& entry);
  void call_trackers(
      const std::function<void(GeneralTracker&)>& function,
      std::string_view what);
  void give_to_all(const FeedItem& item);
  void give_numbers(std::size_t end);
  void note_failure(std::size_t index, std::string_view what);
  void report_totals();
  void warn(const std::string& text) const;

  // What push_numbers() touches comes first, on as few lines of the cache as it
  // fills: a training step leaves none of them there.
  alignas(64) mutable std::mutex mutex_;
  bool has_ended_ = false;
  std::size_t num_waiting_bytes_ = 0;
  NumberBuffer waiting_numbers_;
  std::vector<Entry> waiting_;
  Options options_;
  std::size_t num_ended_bytes_ = 0;  // of waiting_numbers_, by entries
  std::uint64_t num_dropped_ = 0;
  bool is_urgent_ = false;  // somebody waits
  bool is_ending_ = false;
  std::condition_variable work_;
  std::condition_variable room_;

  Trackers trackers_;
  // These belong to the thread.
  NumberBuffer taken_numbers_;
  std::size_t num_given_bytes_ = 0;  // of taken_numbers_
  TrackedValues numbers_;
  std::vector<std::uint64_t> num_failures_;  // by tracker
  std::set<std::pair<std::size_t, std::string_view>> without_;

  std::thread thread_;
};

}  // namespace accelerate::detail
