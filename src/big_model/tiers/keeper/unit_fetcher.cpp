#include "big_model/tiers/keeper/unit_fetcher.h"

#include <chrono>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "big_model/tiers/units/mapped_units.h"

namespace accelerate::detail {

namespace {

using Clock = std::chrono::steady_clock;

// Small units are read together, so that reads are worth their threads.
constexpr std::uint64_t kBatchBytes = std::uint64_t{16} << 20U;
// Fetches in flight: the next fetch's reads are requested before the last reads
// of the previous one have finished.
constexpr std::size_t kMostFetches = 2;

}  // namespace

UnitFetcher::UnitFetcher(ResidentUnits& units, std::mutex& mutex)
    : units_(units),
      mutex_(mutex),
      failures_(units.size()),
      is_cached_(units.size()) {
  thread_ = std::thread([this] { work(); });
}

UnitFetcher::~UnitFetcher() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  work_.notify_all();
  thread_.join();
}

bool UnitFetcher::is_cached(std::size_t unit) {
  if (!is_cached_[unit])
    is_cached_[unit] = can_fetch_at_once(units_.tensors_of(unit));
  return is_cached_[unit];
}

void UnitFetcher::queue(const std::vector<std::size_t>& units) {
  for (const std::size_t unit : queue_) units_.set_queued(unit, false);
  for (const std::size_t unit : units) {
    units_.set_queued(unit, true);
    // Retries the unit even if a prefetch of it has failed.
    failures_[unit] = nullptr;
  }
  queue_.assign(units.begin(), units.end());
  if (!queue_.empty()) work_.notify_one();
}

void UnitFetcher::await(std::size_t unit, Lock& lock) {
  if (units_.state(unit) == State::fetched) return;
  if (units_.is_instant(unit)) {
    // Stays empty, since nothing is read.
    DeviceCopies copies;
    units_.arrive(unit, fetch(requests_for({unit}), copies).front());
    return;
  }
  const auto start = Clock::now();
  if (units_.state(unit) == State::absent) fetch_cached(unit, lock);
  done_.wait(lock, [&] {
    return units_.state(unit) == State::fetched || failures_[unit];
  });
  ++stats_.num_waits;
  stats_.wait_seconds +=
      std::chrono::duration<double>(Clock::now() - start).count();
  // Every waiting thread fails; the next fetch clears the failure.
  if (failures_[unit]) std::rethrow_exception(failures_[unit]);
}

void UnitFetcher::finish(std::size_t unit, Lock& lock) {
  done_.wait(lock, [&] { return units_.state(unit) != State::fetching; });
}

void UnitFetcher::clear(Lock& lock) {
  is_cached_.assign(is_cached_.size(), false);
  done_.wait(lock, [&] { return !is_reading_ || !queue_.empty(); });
  if (!is_reading_) reader_.clear();
}

std::vector<FetchRequest> UnitFetcher::requests_for(
    const std::vector<std::size_t>& units) {
  std::vector<FetchRequest> requests;
  for (const std::size_t unit : units) {
    FetchRequest request{units_.tensors_of(unit), {}};
    const std::uint64_t num_bytes = buffer_bytes(request.tensors);
    if (num_bytes > 0) request.buffer = units_.buffers_of(unit).take(num_bytes);
    requests.push_back(std::move(request));
  }
  return requests;
}

std::vector<std::size_t> UnitFetcher::next_batch() {
  std::vector<std::size_t> batch;
  std::uint64_t sum = 0;
  while (!queue_.empty() && (batch.empty() || sum < kBatchBytes)) {
    const std::size_t unit = queue_.front();
    const std::uint64_t num_bytes = units_.bytes_of(unit);
    // A thread may be waiting for the first unit, so it goes alone if large.
    if (!batch.empty() && sum + num_bytes > kBatchBytes) break;
    if (num_fetches_ > 0 && !units_.memory().has_room_for(num_bytes)) break;
    queue_.pop_front();
    units_.begin_fetch(unit);
    sum += num_bytes;
    batch.push_back(unit);
  }
  return batch;
}

// Fetches a unit that was not queued because it was cached. If the page cache
// has dropped it since, queues it.
void UnitFetcher::fetch_cached(std::size_t unit, Lock& lock) {
  is_cached_[unit] = false;
  failures_[unit] = nullptr;
  units_.begin_fetch(unit);
  const std::vector<const OffloadedTensor*> tensors = units_.tensors_of(unit);
  std::optional<FetchedUnit> fetched;
  lock.unlock();
  try {
    const at::NoGradGuard no_grad;
    fetched = fetch_at_once(tensors);
  } catch (const std::exception&) {
    // The fetch thread reports the error.
  }
  lock.lock();
  if (fetched) {
    arrive(unit, std::move(*fetched));
  } else {
    units_.abandon_fetch(unit);
    units_.set_queued(unit, true);
    queue_.push_front(unit);
    work_.notify_one();
  }
  done_.notify_all();
}

void UnitFetcher::arrive(std::size_t unit, FetchedUnit fetched) {
  stats_.mapped_bytes += fetched.mapped_bytes;
  stats_.fetched_bytes += units_.bytes_of(unit);
  ++stats_.num_fetches;
  failures_[unit] = nullptr;
  units_.arrive(unit, std::move(fetched));
}

/// Units that are fetched together.
struct UnitFetcher::Fetch {
  Fetch(std::vector<std::size_t> indices, std::vector<FetchRequest> requests)
      : units(std::move(indices)), fetch(std::move(requests)) {}

  std::vector<std::size_t> units;
  UnitsFetch fetch;
  std::vector<FetchedUnit> fetched;
};

// A second fetch begins while the first is in flight if there is memory for
// both. On accelerators it does not, since it may have to wait for device
// memory.
bool UnitFetcher::can_begin_fetch() const {
  if (is_ending_ || queue_.empty()) return false;
  if (num_fetches_ == 0) return true;
  const std::size_t unit = queue_.front();
  return num_fetches_ < kMostFetches && units_.device_of(unit).is_cpu() &&
      units_.memory().has_room_for(units_.bytes_of(unit));
}

// Returns null if no fetch can begin now. Called by one thread at a time.
std::optional<BoxList> UnitFetcher::begin_fetch() {
  Lock lock(mutex_);
  while (can_begin_fetch()) {
    const std::vector<std::size_t> units = next_batch();
    try {
      units_.memory().wait_for_released(lock);
      std::vector<FetchRequest> requests = requests_for(units);
      lock.unlock();
      const auto fetch = std::make_shared<Fetch>(units, std::move(requests));
      BoxList list{
          fetch->fetch.boxes(), [this, fetch](std::exception_ptr failure) {
            finish_fetch(fetch, failure);
          }};
      lock.lock();
      ++num_fetches_;
      return list;
    } catch (...) {
      const std::exception_ptr failure = std::current_exception();
      if (!lock.owns_lock()) lock.lock();
      if (units.size() == 1) fail(units.front(), failure);
      if (units.size() > 1)
        for (const std::size_t unit : units) fetch_alone(unit, lock);
    }
    done_.notify_all();
  }
  return std::nullopt;
}

// One thread at a time, since copies to devices are issued in order.
void UnitFetcher::take_values(Fetch& fetch) {
  const std::lock_guard lock(copies_mutex_);
  fetch.fetched = fetch.fetch.finish(copies_);
}

void UnitFetcher::finish_fetch(
    const std::shared_ptr<Fetch>& fetch,
    std::exception_ptr failure) {
  try {
    if (!failure) take_values(*fetch);
  } catch (...) {
    failure = std::current_exception();
  }
  Lock lock(mutex_);
  const std::vector<std::size_t>& units = fetch->units;
  if (!failure) {
    arrive_all(*fetch);
  } else if (units.size() == 1) {
    fail(units.front(), failure);
  } else {
    // One of the units has failed; the others should still arrive.
    for (const std::size_t unit : units) fetch_alone(unit, lock);
  }
  --num_fetches_;
  done_.notify_all();
}

void UnitFetcher::arrive_all(Fetch& fetch) {
  for (std::size_t i = 0; i < fetch.units.size(); ++i) {
    const std::size_t unit = fetch.units[i];
    arrive(unit, std::move(fetch.fetched[i]));
    // Values copied to a device no longer live in the buffer.
    const FetchedUnit& own = units_.fetched(unit);
    if (!own.buffer.defined())
      units_.buffers_of(unit).give_back(
          std::move(fetch.fetch.requests()[i].buffer), own.arrival);
  }
}

void UnitFetcher::fetch_alone(std::size_t unit, Lock& lock) {
  std::vector<FetchRequest> requests;
  try {
    requests = requests_for({unit});
    lock.unlock();
    Fetch fetch({unit}, std::move(requests));
    read_boxes(fetch.fetch.boxes());
    take_values(fetch);
    lock.lock();
    arrive_all(fetch);
  } catch (...) {
    const std::exception_ptr failure = std::current_exception();
    if (!lock.owns_lock()) lock.lock();
    fail(unit, failure);
  }
}

void UnitFetcher::fail(std::size_t unit, const std::exception_ptr& failure) {
  failures_[unit] = failure;
  units_.abandon_fetch(unit);
}

void UnitFetcher::work() {
  Lock lock(mutex_);
  while (true) {
    work_.wait(lock, [&] { return is_ending_ || !queue_.empty(); });
    if (is_ending_) return;
    is_reading_ = true;
    lock.unlock();
    reader_.read_lists([this] { return begin_fetch(); });
    lock.lock();
    is_reading_ = false;
    done_.notify_all();
  }
}

}  // namespace accelerate::detail
