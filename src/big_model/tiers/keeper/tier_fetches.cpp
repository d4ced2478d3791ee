// What TierKeeper fetches, and its fetch thread.
#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "big_model/tiers/keeper/tier_keeper.h"
#include "big_model/tiers/units/mapped_units.h"

namespace accelerate::detail {

namespace {

// Small units are read together, so that reads are worth their threads.
constexpr std::uint64_t kBatchBytes = std::uint64_t{16} << 20U;
// Fetches in flight: the next fetch's reads are requested before the last reads
// of the previous one have finished.
constexpr std::size_t kMostFetches = 2;

}  // namespace

std::vector<FetchRequest> TierKeeper::requests_for(
    const std::vector<std::size_t>& units) {
  std::vector<FetchRequest> requests;
  for (const std::size_t unit : units) {
    FetchRequest request{tensors_of(unit), {}};
    const std::uint64_t num_bytes = buffer_bytes(request.tensors);
    if (num_bytes > 0) request.buffer = pool_of(unit).take(num_bytes);
    requests.push_back(std::move(request));
  }
  return requests;
}

std::vector<std::size_t> TierKeeper::next_batch() {
  std::vector<std::size_t> batch;
  std::uint64_t sum = 0;
  while (!to_fetch_.empty() && (batch.empty() || sum < kBatchBytes)) {
    const std::size_t unit = to_fetch_.front();
    // A thread may be waiting for the first unit, so it goes alone if large.
    if (!batch.empty() && sum + bytes_of_unit(unit) > kBatchBytes) break;
    if (num_fetches_ > 0 && !has_memory_for(sum + bytes_of_unit(unit))) break;
    to_fetch_.pop_front();
    units_[unit].state = State::fetching;
    sum += bytes_of_unit(unit);
    batch.push_back(unit);
  }
  count_memory(sum);
  return batch;
}

bool TierKeeper::is_fetched_when_used(std::size_t unit) {
  Unit& own = units_[unit];
  if (!own.is_cached) own.is_cached = can_fetch_at_once(tensors_of(unit));
  return own.is_cached;
}

// Fetches a unit that was not prefetched because it was cached. If the page
// cache has dropped it since, queues it.
void TierKeeper::fetch_or_queue(std::size_t unit, Lock& lock) {
  Unit& own = units_[unit];
  own.is_cached = false;
  own.state = State::fetching;
  count_memory(bytes_of_unit(unit));
  const std::vector<const OffloadedTensor*> tensors = tensors_of(unit);
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
    bytes_in_memory_ -= bytes_of_unit(unit);
    own.state = State::queued;
    to_fetch_.push_front(unit);
    queue_.notify_one();
  }
  done_.notify_all();
}

void TierKeeper::arrive(std::size_t unit, FetchedUnit fetched) {
  Unit& own = units_[unit];
  own.fetched = std::move(fetched);
  own.failure = nullptr;
  own.state = State::fetched;
  ++stats_.num_fetches;
  stats_.fetched_bytes += bytes_of_unit(unit);
  stats_.mapped_bytes += own.fetched.mapped_bytes;
}

/// Units that are fetched together.
struct TierKeeper::Fetch {
  Fetch(std::vector<std::size_t> indices, std::vector<FetchRequest> requests)
      : units(std::move(indices)), fetch(std::move(requests)) {}

  std::vector<std::size_t> units;
  UnitsFetch fetch;
  std::vector<FetchedUnit> fetched;
};

// A second fetch begins while the first is in flight if there is memory for
// both. On accelerators it does not, since it may have to wait for device
// memory.
bool TierKeeper::can_begin_fetch() const {
  if (is_ending_ || to_fetch_.empty()) return false;
  if (num_fetches_ == 0) return true;
  const std::size_t unit = to_fetch_.front();
  return num_fetches_ < kMostFetches && device_of_unit(unit).is_cpu() &&
      has_memory_for(bytes_of_unit(unit));
}

// Returns null if no fetch can begin now. Called by one thread at a time.
std::optional<BoxList> TierKeeper::begin_fetch() {
  Lock lock(mutex_);
  while (can_begin_fetch()) {
    const std::vector<std::size_t> units = next_batch();
    try {
      wait_for_memory(lock);
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
void TierKeeper::take_values(Fetch& fetch) {
  const std::lock_guard lock(copies_mutex_);
  fetch.fetched = fetch.fetch.finish(copies_);
}

void TierKeeper::finish_fetch(
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

void TierKeeper::arrive_all(Fetch& fetch) {
  for (std::size_t i = 0; i < fetch.units.size(); ++i) {
    const std::size_t unit = fetch.units[i];
    arrive(unit, std::move(fetch.fetched[i]));
    // Values copied to a device no longer live in the buffer.
    const FetchedUnit& own = units_[unit].fetched;
    if (!own.buffer.defined())
      pool_of(unit).give_back(
          std::move(fetch.fetch.requests()[i].buffer), own.arrival);
  }
}

void TierKeeper::fetch_alone(std::size_t unit, Lock& lock) {
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

void TierKeeper::fail(std::size_t unit, const std::exception_ptr& failure) {
  units_[unit].failure = failure;
  units_[unit].state = State::absent;
  bytes_in_memory_ -= bytes_of_unit(unit);
}

void TierKeeper::work() {
  Lock lock(mutex_);
  while (true) {
    queue_.wait(lock, [&] { return is_ending_ || !to_fetch_.empty(); });
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
