#include "trackers/feed/tracker_feed.h"

#include <algorithm>
#include <future>

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

TrackerFeed::TrackerFeed(Trackers trackers, Options options)
    : options_(std::move(options)),
      trackers_(std::move(trackers)),
      fed_(trackers_.size()) {
  thread_ = std::thread([this] { work(); });
}

TrackerFeed::~TrackerFeed() { finish(); }

void TrackerFeed::start(const std::optional<TrackedValues>& config) {
  run([&] {
    for (Fed& each : fed_) each.is_running = false;
    for (std::size_t i = 0; i < trackers_.size(); ++i) {
      trackers_[i]->start();
      fed_[i].is_running = true;
    }
    if (!config) return;
    const TrackedItem item{.content = TrackedConfig{*config}};
    for (const auto& tracker : trackers_) tracker->log_item(item);
  });
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
  if (num_dropped_++ == 0) {
    lock.unlock();
    warn(format(
        "[trackers] trackers are slower than what is logged; training goes on, "
        "but they lose values while there is no room; {}",
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
    call_trackers([&](GeneralTracker&) { function(); }, "events");
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
    call_trackers([](GeneralTracker& each) { each.flush(); }, "flush");
  });
}

void TrackerFeed::finish() {
  {
    const std::lock_guard lock(mutex_);
    if (!is_ending_ && options_.patience) {
      const auto now = Clock::now();
      end_ = now + options_.most_end;
      options_.patience->end_by(now + options_.most_end_wait);
    }
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
    call_trackers([](GeneralTracker& each) { each.flush(); }, "flush");
    lock.lock();
  }
  lock.unlock();
  room_.notify_all();
  is_finishing_ = true;
  call_trackers([](GeneralTracker& each) { each.finish(); }, "finish");
  report_totals();
}

void TrackerFeed::take(Entry& entry) {
  if (const auto* item =
          std::get_if<std::shared_ptr<const TrackedItem>>(&entry)) {
    give_to_all(**item);
  } else if (const auto* numbers = std::get_if<Numbers>(&entry)) {
    give_numbers(numbers->end);
  } else {
    std::get<Call>(entry).function();
  }
}

// Whether a tracker takes part at the moment. At the end, each call gets its own
// time to wait.
bool TrackerFeed::may_call(const Fed& fed) {
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

// Returns false if the tracker does not take part at the moment.
template <class Function>
bool TrackerFeed::call(
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

void TrackerFeed::give_numbers(std::size_t end) {
  while (num_given_bytes_ < end) {
    num_given_bytes_ = taken_numbers_.read(
        num_given_bytes_,
        std::get<TrackedValues>(numbers_.content),
        numbers_.time);
    give_to_all(numbers_);
  }
}

void TrackerFeed::give_to_all(const TrackedItem& item) {
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

void TrackerFeed::call_trackers(
    const std::function<void(GeneralTracker&)>& function,
    std::string_view what) {
  for (std::size_t i = 0; i < trackers_.size(); ++i) call(i, what, function);
}

void TrackerFeed::note_failure(
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
      "[trackers] {} failed ({}): {}; training goes on, and {}",
      trackers_[index]->name(),
      what,
      message_of(std::current_exception()),
      options_.where_else));
}

void TrackerFeed::report_totals() {
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
          "[trackers] {} values, images and the like were not given to {}, "
          "which did not answer in time; {}",
          fed.num_missed,
          trackers_[i]->name(),
          options_.where_else));
    }
  }
  const std::uint64_t dropped = num_dropped();
  if (dropped == 0) return;
  warn(format(
      "[trackers] {} values, images and the like were lost to trackers because "
      "there was no room for them",
      dropped));
}

void TrackerFeed::warn(const std::string& text) const {
  if (options_.warn) options_.warn(text);
}

}  // namespace accelerate::detail
