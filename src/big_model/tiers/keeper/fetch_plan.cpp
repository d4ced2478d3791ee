// Decides which units TierKeeper keeps in memory: units expected next are kept
// or fetched, the rest evicted.
#include <algorithm>

#include "big_model/tiers/keeper/tier_keeper.h"

namespace accelerate::detail {

// Evicts units that are not expected next and queues those that are.
void TierKeeper::plan_fetches() {
  const std::size_t current = *current_;
  std::vector<bool> is_kept(units_.size(), options_.keeps_fetched);
  std::vector<std::size_t> wanted;
  const std::uint64_t limit = units_.memory().limit();
  std::uint64_t sum = 0;
  const auto want = [&](std::size_t unit) {
    if (units_.is_missing(unit) && !fetcher_.is_cached(unit))
      wanted.push_back(unit);
  };
  want(current);
  for (std::size_t i = 0; i < units_.size(); ++i) {
    if (i != current && !pins_.is_pinned(i)) continue;
    is_kept[i] = true;
    sum += units_.bytes_of(i);
    // Another thread is waiting for this unit.
    if (i != current && units_.is_missing(i)) wanted.push_back(i);
  }
  order_.upcoming([&](std::size_t next) {
    if (is_kept[next] && !options_.keeps_fetched) return true;
    if (!options_.keeps_fetched && sum + units_.bytes_of(next) > limit)
      return false;
    if (std::ranges::find(wanted, next) == wanted.end()) want(next);
    is_kept[next] = true;
    sum += units_.bytes_of(next);
    return true;
  });
  for (std::size_t i = 0; i < units_.size(); ++i) {
    if (!is_kept[i] && units_.state(i) == State::fetched) evict(i);
  }
  fetcher_.queue(wanted);
}

void TierKeeper::evict(std::size_t unit) {
  if (fills_tensors_[unit]) {
    for (const std::size_t tensor : weights_.units[unit].tensors) {
      if (gates_[tensor] != nullptr && gates_[tensor]->is_filled())
        gates_[tensor]->release();
    }
  }
  fills_tensors_[unit] = false;
  if (current_ == unit) current_.reset();
  units_.evict(unit);
}

void TierKeeper::evict_all() {
  Lock lock(mutex_);
  std::vector<std::size_t> awaited;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    if (pins_.is_pinned_by_others(i) && units_.is_missing(i))
      awaited.push_back(i);
  }
  fetcher_.queue(awaited);
  for (std::size_t i = 0; i < units_.size(); ++i) {
    fetcher_.finish(i, lock);
    if (units_.state(i) == State::fetched && !pins_.is_pinned_by_others(i))
      evict(i);
  }
  units_.memory().clear_buffers();
  fetcher_.clear(lock);
}

}  // namespace accelerate::detail
