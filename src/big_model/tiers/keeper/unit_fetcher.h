#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <accelerate/big_model.h>

#include "big_model/tiers/keeper/resident_units.h"
#include "big_model/tiers/units/device_copies.h"
#include "big_model/tiers/units/weight_units.h"
#include "format/tensors/box_reader.h"

namespace accelerate::detail {

/// Fetches units: those of its queue on a thread of its own, cached ones on the
/// thread that uses them. The keeper's mutex guards the units and this object:
/// callers hold it, and functions that take the lock unlock it while they wait.
class UnitFetcher {
 public:
  using Lock = std::unique_lock<std::mutex>;

  /// Both must outlive this object.
  UnitFetcher(ResidentUnits& units, std::mutex& mutex);
  /// Waits for fetches in flight. Must be called without the mutex.
  ~UnitFetcher();
  UnitFetcher(const UnitFetcher&) = delete;
  UnitFetcher& operator=(const UnitFetcher&) = delete;

  /// Whether await() would read the unit from the page cache, which costs less
  /// than queueing it.
  [[nodiscard]] bool is_cached(std::size_t unit);
  /// Replaces the queue with these missing units, the first to fetch first.
  void queue(const std::vector<std::size_t>& units);
  /// Returns when the unit, which is queued, cached or instant, has been
  /// fetched. Throws what its fetch threw, to every thread that waits for it.
  void await(std::size_t unit, Lock& lock);
  /// Returns when the unit is not being fetched.
  void finish(std::size_t unit, Lock& lock);
  /// Forgets which units were cached, and frees the memory of reads unless
  /// there are more.
  void clear(Lock& lock);
  /// Numbers of fetches and waits, with their bytes and times.
  [[nodiscard]] const DispatchStats& stats() const { return stats_; }

 private:
  using State = ResidentUnits::State;
  struct Fetch;

  void fetch_cached(std::size_t unit, Lock& lock);
  std::vector<FetchRequest> requests_for(const std::vector<std::size_t>& units);
  std::vector<std::size_t> next_batch();
  [[nodiscard]] bool can_begin_fetch() const;
  std::optional<BoxList> begin_fetch();
  void take_values(Fetch& fetch);
  void finish_fetch(
      const std::shared_ptr<Fetch>& fetch,
      std::exception_ptr failure);
  void arrive_all(Fetch& fetch);
  void arrive(std::size_t unit, FetchedUnit fetched);
  void fetch_alone(std::size_t unit, Lock& lock);
  void fail(std::size_t unit, const std::exception_ptr& failure);
  void work();

  ResidentUnits& units_;
  std::mutex& mutex_;
  std::condition_variable work_;
  std::condition_variable done_;
  std::vector<std::exception_ptr> failures_;  // by unit, until its next fetch
  std::vector<bool> is_cached_;               // by unit
  std::deque<std::size_t> queue_;
  /// Used by the fetch thread and the threads that it starts.
  BoxReader reader_;
  bool is_reading_ = false;
  std::size_t num_fetches_ = 0;  // in flight
  std::mutex copies_mutex_;      // never locked while holding mutex_
  DeviceCopies copies_;
  DispatchStats stats_;
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace accelerate::detail
