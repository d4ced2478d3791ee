#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <variant>
#include <vector>

#include <accelerate/tracker.h>

#include "trackers/feed/feed_item.h"
#include "trackers/feed/number_buffer.h"
#include "trackers/feed/tracker_calls.h"
#include "trackers/feed/tracker_feed_options.h"

namespace accelerate::detail {

/// Owns trackers and calls them on one thread with what was logged, in order
/// (TrackerCalls handles failures). Trackers are flushed whenever the queue is
/// empty. After start(), only those that have started are called. Thread-safe.
class TrackerFeed {
 public:
  using Options = TrackerFeedOptions;
  using Trackers = TrackerCalls::Trackers;

  explicit TrackerFeed(Trackers trackers, Options options = {});
  TrackerFeed(const TrackerFeed&) = delete;
  TrackerFeed& operator=(const TrackerFeed&) = delete;
  /// Calls finish().
  ~TrackerFeed();

  /// Starts the trackers, passes them the configuration if there is one, and
  /// returns once they are done. Throws the first tracker's exception.
  void start(const std::optional<TrackedValues>& config);
  void push(std::shared_ptr<const TrackedItem> item);
  /// Queues real numbers, which are copied: the caller shares no memory with
  /// the thread, since sharing costs most.
  void push_numbers(const TrackedValues& numbers, const LogTime& time);
  /// Calls a function in its turn, once per tracker. What it throws counts as
  /// the tracker's failure.
  void push_call(std::function<void()> function, std::size_t num_bytes);
  /// Calls a function in its turn if there is room for it; otherwise drops it
  /// silently.
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

  [[nodiscard]] const Trackers& trackers() const { return calls_.trackers(); }
  /// Number of items that were dropped because there was no room.
  [[nodiscard]] std::uint64_t num_dropped() const;

 private:
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
  void give_numbers(std::size_t end);

  // Members that push_numbers() touches come first and span as few cache lines
  // as possible, since a training step evicts all of them.
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

  // These belong to the worker thread.
  TrackerCalls calls_;
  NumberBuffer taken_numbers_;
  std::size_t num_given_bytes_ = 0;  // of taken_numbers_
  TrackedItem numbers_{.content = TrackedValues()};
  std::thread thread_;
};

}  // namespace accelerate::detail
