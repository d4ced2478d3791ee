#include "trackers/feed/tracker_feed.h"

#include <future>
#include <utility>

#include "base/text/text.h"

namespace accelerate::detail {

TrackerFeed::TrackerFeed(Trackers trackers, Options options)
    : options_(std::move(options)), calls_(std::move(trackers), options_) {
  thread_ = std::thread([this] { work(); });
}

TrackerFeed::~TrackerFeed() { finish(); }

void TrackerFeed::start(const std::optional<TrackedValues>& config) {
  run([&] { calls_.start(config); });
}

bool TrackerFeed::is_empty() const {
  return waiting_.empty() && waiting_numbers_.num_bytes() == 0;
}

// A single item may exceed the limit.
bool TrackerFeed::fits(std::size_t size) const {
  return is_empty() ||
      num_waiting_bytes_ + size <= options_.most_waiting_bytes || has_ended_;
}

bool TrackerFeed::has_room(
    std::unique_lock<std::mutex>& lock,
    std::size_t size) {
  if (fits(size)) return true;
  is_urgent_ = true;
  work_.notify_one();
  if (options_.when_full == WhenFull::wait) {
    room_.wait(lock, [&] { return fits(size); });
    return !has_ended_;
  }
  if (num_dropped_++ == 0 && options_.warn) {
    lock.unlock();
    options_.warn(format(
        "[trackers] trackers are slower than the program logs; training "
        "continues, but they lose values while there is no room; {}",
        options_.where_else));
    lock.lock();
  }
  return false;
}

void TrackerFeed::push(std::shared_ptr<const TrackedItem> item) {
  const std::size_t size = size_of(*item);
  std::unique_lock lock(mutex_);
  if (!has_ended_ && has_room(lock, size)) enqueue(std::move(item), size);
}

void TrackerFeed::push_numbers(
    const TrackedValues& numbers,
    const LogTime& time) {
  const std::size_t size = NumberBuffer::size_of(numbers);
  std::unique_lock lock(mutex_);
  if (has_ended_ || !has_room(lock, size)) return;
  num_waiting_bytes_ += size;
  waiting_numbers_.add(numbers, time);
}

// Adds an entry for the numbers pushed since the last one.
void TrackerFeed::end_numbers() {
  if (waiting_numbers_.num_bytes() == num_ended_bytes_) return;
  num_ended_bytes_ = waiting_numbers_.num_bytes();
  waiting_.emplace_back(Numbers{num_ended_bytes_});
}

void TrackerFeed::push_call(
    std::function<void()> function,
    std::size_t num_bytes) {
  const std::size_t size = sizeof(TrackedItem) + num_bytes;
  std::unique_lock lock(mutex_);
  if (!has_ended_ && has_room(lock, size))
    enqueue(protected_call(std::move(function)), size);
}

void TrackerFeed::push_call_if_room(
    std::function<void()> function,
    std::size_t num_bytes) {
  const std::size_t size = sizeof(TrackedItem) + num_bytes;
  const std::lock_guard lock(mutex_);
  if (!has_ended_ && fits(size))
    enqueue(protected_call(std::move(function)), size);
}

TrackerFeed::Call TrackerFeed::protected_call(std::function<void()> function) {
  return {[this, function = std::move(function)] {
    calls_.for_each([&](GeneralTracker&) { function(); }, "events");
  }};
}

void TrackerFeed::enqueue(Entry entry, std::size_t size) {
  num_waiting_bytes_ += size;
  end_numbers();
  waiting_.push_back(std::move(entry));
}

void TrackerFeed::run(std::function<void()> function) {
  // Shared, since the thread still holds the task when its result is ready.
  const auto task =
      std::make_shared<std::packaged_task<void()>>(std::move(function));
  std::future<void> done = task->get_future();
  {
    const std::lock_guard lock(mutex_);
    if (has_ended_) return;
    end_numbers();
    waiting_.emplace_back(Call{[task] { (*task)(); }});
    is_urgent_ = true;
  }
  work_.notify_one();
  done.get();
}

void TrackerFeed::flush() {
  run([this] {
    calls_.for_each([](GeneralTracker& each) { each.flush(); }, "flush");
  });
}

void TrackerFeed::finish() {
  {
    const std::lock_guard lock(mutex_);
    if (!is_ending_) calls_.begin_end();
    is_ending_ = true;
  }
  work_.notify_one();
  if (thread_.joinable()) thread_.join();
}

std::uint64_t TrackerFeed::num_dropped() const {
  const std::lock_guard lock(mutex_);
  return num_dropped_;
}

void TrackerFeed::await_items(std::unique_lock<std::mutex>& lock) {
  do {
    work_.wait_for(
        lock, options_.interval, [&] { return is_ending_ || is_urgent_; });
  } while (is_empty() && !is_ending_);
  is_urgent_ = false;
}

void TrackerFeed::work() {
  // Two lists alternate, so that a loop that logs rarely waits for memory.
  std::vector<Entry> batch;
  std::unique_lock lock(mutex_);
  while (true) {
    await_items(lock);
    end_numbers();
    batch.swap(waiting_);
    taken_numbers_.swap(waiting_numbers_);
    num_waiting_bytes_ = num_ended_bytes_ = 0;
    if (batch.empty()) {
      has_ended_ = true;
      break;
    }
    lock.unlock();
    room_.notify_all();
    for (Entry& entry : batch) take(entry);
    batch.clear();
    taken_numbers_.clear();
    num_given_bytes_ = 0;
    lock.lock();
    if (!is_empty()) continue;
    lock.unlock();
    calls_.for_each([](GeneralTracker& each) { each.flush(); }, "flush");
    lock.lock();
  }
  lock.unlock();
  room_.notify_all();
  calls_.finish();
  const std::uint64_t dropped = num_dropped();
  if (dropped == 0 || !options_.warn) return;
  options_.warn(format(
      "[trackers] {} values, images and the like were lost to trackers because "
      "there was no room for them",
      dropped));
}

void TrackerFeed::take(Entry& entry) {
  if (const auto* item =
          std::get_if<std::shared_ptr<const TrackedItem>>(&entry)) {
    calls_.log_item(**item);
  } else if (const auto* numbers = std::get_if<Numbers>(&entry)) {
    give_numbers(numbers->end);
  } else {
    std::get<Call>(entry).function();
  }
}

void TrackerFeed::give_numbers(std::size_t end) {
  while (num_given_bytes_ < end) {
    num_given_bytes_ = taken_numbers_.read(
        num_given_bytes_,
        std::get<TrackedValues>(numbers_.content),
        numbers_.time);
    calls_.log_item(numbers_);
  }
}

}  // namespace accelerate::detail
