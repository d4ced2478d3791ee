#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include <accelerate/tracker.h>

#include "trackers/feed/feed_item.h"
#include "trackers/feed/number_buffer.h"
#include "trackers/tracker_patience.h"

namespace accelerate::detail {

/// What a feed does with an item for which there is no room.
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
  /// What warnings say about values that are lost to these trackers.
  std::string where_else = "what it lost is in the run's journal";
  /// Receives warnings, on any thread.
  std::function<void(const std::string&)> warn = {};
  /// That of the trackers, if the feed is to bound their waits. A tracker whose
  /// call fails after `slow` then gets nothing for `rest_factor` times as long,
  /// and finish() takes at most `most_end`, of which waits for others that do not
  /// answer take at most `most_end_wait` each. Null: no bounds.
  std::shared_ptr<TrackerPatience> patience = nullptr;
  std::chrono::milliseconds slow{1000};
  int rest_factor = 10;
  std::chrono::milliseconds most_end_wait{30'000};
  std::chrono::milliseconds most_end{600'000};
};

/// Owns trackers and calls them on one thread with what was logged, in order. A
/// tracker that throws is warned about once and continues to be called; one that
/// makes the feed wait rests first. Trackers are flushed whenever the queue is
/// empty. After start(), only those that have started are called. Thread-safe.
class TrackerFeed {
 public:
  using Options = TrackerFeedOptions;
  using Trackers = std::vector<std::shared_ptr<GeneralTracker>>;

  explicit TrackerFeed(Trackers trackers, Options options = {});
  TrackerFeed(const TrackerFeed&) = delete;
  TrackerFeed& operator=(const TrackerFeed&) = delete;
  /// Calls finish().
  ~TrackerFeed();

  /// Starts the trackers, passes them the configuration if there is one, and
  /// returns once they are done. Throws the first tracker's exception.
  void start(const std::optional<TrackedValues>& config);
  void push(std::shared_ptr<const TrackedItem> item);
  /// The same for real numbers, which are copied into the queue: the caller
  /// shares no memory with the thread, since sharing is what costs most.
  void push_numbers(const TrackedValues& numbers, const LogTime& time);
  /// Calls a function in its turn, once per tracker. What it throws counts as
  /// the tracker's failure.
  void push_call(std::function<void()> function, std::size_t num_bytes);
  /// The same if there is room for it; otherwise drops it silently.
  void push_call_if_room(std::function<void()> function, std::size_t num_bytes);
  /// Runs a function on the feed's thread after everything pushed before, and
  /// waits for it. Throws what it throws. Trackers must not call it.
  void run(std::function<void()> function);
  /// Returns once the trackers have received and flushed everything pushed
  /// before.
  void flush();
  /// Delivers what is queued, finishes the trackers and ends the thread, within
  /// the bounds of the options. What is pushed afterwards is ignored.
  void finish();

  [[nodiscard]] const Trackers& trackers() const { return trackers_; }
  /// Number of items that were dropped because there was no room.
  [[nodiscard]] std::uint64_t num_dropped() const;

 private:
  using Clock = TrackerPatience::Clock;
  // A tracker as the worker thread knows it.
  struct Fed {
    bool is_running = true;
    bool is_given_up = false;  // it made finish() wait
    Clock::time_point rests_until = Clock::time_point::min();
    std::uint64_t num_failures = 0;
    std::uint64_t num_missed = 0;
  };
  struct Call {
    std::function<void()> function;
  };
  // The numbers in the buffer up to `end`.
  struct Numbers {
    std::size_t end = 0;
  };
  using Entry = std::variant<std::shared_ptr<const TrackedItem>, Call, Numbers>;

  bool has_room(std::unique_lock<std::mutex>& lock, std::size_t size);
  [[nodiscard]] bool fits(std::size_t size) const;
  [[nodiscard]] bool is_empty() const;
  void end_numbers();
  void enqueue(Entry entry, std::size_t size);
  [[nodiscard]] Call protected_call(std::function<void()> function);
  void work();
  void await_items(std::unique_lock<std::mutex>& lock);
  void take(Entry& entry);
  void call_trackers(
      const std::function<void(GeneralTracker&)>& function,
      std::string_view what);
  template <class Function>
  bool call(std::size_t index, std::string_view what, Function function);
  [[nodiscard]] bool may_call(const Fed& fed);
  void give_to_all(const TrackedItem& item);
  void give_numbers(std::size_t end);
  void
  note_failure(std::size_t index, std::string_view what, Clock::duration time);
  void report_totals();
  void warn(const std::string& text) const;

  // What push_numbers() touches comes first and spans as few cache lines as
  // possible: a training step evicts all of them.
  alignas(64) mutable std::mutex mutex_;
  bool has_ended_ = false;
  std::size_t num_waiting_bytes_ = 0;
  NumberBuffer waiting_numbers_;
  std::vector<Entry> waiting_;
  Options options_;
  std::size_t num_ended_bytes_ = 0;  // of waiting_numbers_, by entries
  std::uint64_t num_dropped_ = 0;
  bool is_urgent_ = false;  // a caller is waiting
  bool is_ending_ = false;
  std::condition_variable work_;
  std::condition_variable room_;

  Trackers trackers_;
  // These belong to the worker thread.
  NumberBuffer taken_numbers_;
  std::size_t num_given_bytes_ = 0;  // of taken_numbers_
  TrackedItem numbers_{.content = TrackedValues()};
  std::vector<Fed> fed_;  // by tracker
  bool is_finishing_ = false;
  std::set<std::pair<std::size_t, std::string_view>> without_;

  // When finish() has to be done; max() before it is called.
  std::atomic<Clock::time_point> end_ = Clock::time_point::max();
  std::thread thread_;
};

}  // namespace accelerate::detail
