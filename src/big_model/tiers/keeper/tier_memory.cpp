// Decides which units TierKeeper has in memory: units expected next are kept or
// fetched, the rest evicted.
#include <algorithm>
#include <utility>

#include <c10/core/Event.h>

#include "big_model/tiers/keeper/tier_keeper.h"

namespace accelerate::detail {

std::uint64_t TierKeeper::bytes_of_unit(std::size_t unit) const {
  return units_[unit].is_instant ? 0 : weights_.units[unit].num_bytes;
}

bool TierKeeper::has_memory_for(std::uint64_t num_bytes) const {
  return options_.keeps_fetched ||
      bytes_in_memory_ + num_bytes <= options_.memory;
}

// If memory is short, waits until the device has finished the queued work that
// uses evicted units.
void TierKeeper::wait_for_memory(Lock& lock) {
  leaving_.forget_what_left();
  while (bytes_in_memory_ + leaving_.bytes() > options_.memory) {
    const std::shared_ptr<c10::Event> end = leaving_.oldest();
    if (end == nullptr) break;
    lock.unlock();
    end->synchronize();
    lock.lock();
    leaving_.forget_what_left();
  }
  stats_.peak_bytes =
      std::max(stats_.peak_bytes, bytes_in_memory_ + leaving_.bytes());
}

void TierKeeper::count_memory(std::uint64_t num_bytes) {
  bytes_in_memory_ += num_bytes;
  stats_.peak_bytes = std::max(stats_.peak_bytes, bytes_in_memory_);
}

// Evicts units that are not expected next and queues those that are.
void TierKeeper::plan_fetches() {
  const std::size_t current = *current_;
  std::vector<bool> is_kept(units_.size(), options_.keeps_fetched);
  std::vector<std::size_t> wanted;
  std::uint64_t sum = 0;
  const auto is_missing = [&](std::size_t unit) {
    const State state = units_[unit].state;
    return !units_[unit].is_instant &&
        (state == State::absent || state == State::queued);
  };
  const auto want = [&](std::size_t unit) {
    if (!is_missing(unit)) return;
    units_[unit].failure = nullptr;
    if (!is_fetched_when_used(unit)) wanted.push_back(unit);
  };
  want(current);
  for (std::size_t i = 0; i < units_.size(); ++i) {
    if (i != current && !pins_.is_pinned(i)) continue;
    is_kept[i] = true;
    sum += bytes_of_unit(i);
    // Another thread is waiting for this unit.
    if (i != current && is_missing(i)) wanted.push_back(i);
  }
  order_.upcoming([&](std::size_t next) {
    if (is_kept[next] && !options_.keeps_fetched) return true;
    if (!options_.keeps_fetched && sum + bytes_of_unit(next) > options_.memory)
      return false;
    if (std::find(wanted.begin(), wanted.end(), next) == wanted.end())
      want(next);
    is_kept[next] = true;
    sum += bytes_of_unit(next);
    return true;
  });
  for (std::size_t i = 0; i < units_.size(); ++i) {
    if (units_[i].state == State::queued) units_[i].state = State::absent;
    if (!is_kept[i] && units_[i].state == State::fetched) evict(i);
  }
  for (const std::size_t unit : wanted) {
    units_[unit].state = State::queued;
    // Retries the unit even if a prefetch of it has failed.
    units_[unit].failure = nullptr;
  }
  to_fetch_.assign(wanted.begin(), wanted.end());
  if (!to_fetch_.empty()) queue_.notify_one();
}

void TierKeeper::evict(std::size_t unit) {
  Unit& own = units_[unit];
  if (own.fills_tensors) {
    for (const std::size_t tensor : weights_.units[unit].tensors) {
      if (gates_[tensor] != nullptr && gates_[tensor]->is_filled())
        gates_[tensor]->release();
    }
  }
  own.fills_tensors = false;
  own.state = State::absent;
  own.fetched.values.clear();
  pool_of(unit).give_back(std::move(own.fetched.buffer));
  own.fetched = {};
  if (current_ == unit) current_.reset();
  if (own.is_instant) return;
  bytes_in_memory_ -= bytes_of_unit(unit);
  if (const c10::Device device = device_of_unit(unit); !device.is_cpu())
    leaving_.add(device, bytes_of_unit(unit));
  // Buffers are a little larger than the tensors in them.
  const std::uint64_t left = options_.memory > bytes_in_memory_
      ? options_.memory - bytes_in_memory_
      : 0;
  trim_pools(left + left / 16);
}

// All tensors of a unit are used on one device.
BufferPool& TierKeeper::pool_of(std::size_t unit) {
  return device_of_unit(unit).is_cpu() ? buffers_ : pinned_buffers_;
}

void TierKeeper::trim_pools(std::uint64_t num_bytes) {
  buffers_.trim(num_bytes);
  pinned_buffers_.trim(num_bytes);
}

void TierKeeper::evict_all() {
  Lock lock(mutex_);
  to_fetch_.clear();
  for (std::size_t i = 0; i < units_.size(); ++i) {
    units_[i].is_cached = false;
    if (units_[i].state == State::queued) units_[i].state = State::absent;
    done_.wait(lock, [&] { return units_[i].state != State::fetching; });
    if (units_[i].state == State::fetched && !pins_.is_pinned_by_others(i))
      evict(i);
  }
  buffers_.clear();
  pinned_buffers_.clear();
  done_.wait(lock, [&] { return !is_reading_ || !to_fetch_.empty(); });
  if (!is_reading_) reader_.clear();
}

}  // namespace accelerate::detail
