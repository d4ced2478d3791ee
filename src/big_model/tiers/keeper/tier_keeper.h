#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <accelerate/big_model.h>

#include "big_model/model/offload_keeper.h"
#include "big_model/tiers/keeper/access_order.h"
#include "big_model/tiers/keeper/unit_pins.h"
#include "big_model/tiers/units/buffer_pool.h"
#include "big_model/tiers/units/device_copies.h"
#include "big_model/tiers/units/weight_units.h"
#include "gate/gate.h"

namespace accelerate::detail {

/// The weights that a TierKeeper manages.
struct KeptWeights {
  std::vector<OffloadedTensor> tensors;
  std::vector<WeightUnit> units;
};

struct TierOptions {
  /// Limit on the bytes of units in memory, including units in use. 0 means
  /// twice the largest unit.
  std::uint64_t memory = 0;
  /// Whether operators receive tensors on several devices.
  bool moves_inputs = false;
  /// Number of entries in the device map.
  std::size_t num_places = 1;
  /// Keeps units in memory until evict_all().
  bool keeps_fetched = false;
  /// Called before a unit is fetched while none is in memory.
  std::function<void()> before_first = nullptr;
};

/// Manages offloaded weights: prefetches units on its own thread in the order
/// in which it expects them, fills their tensors when an operator uses one, and
/// evicts units that are not expected next. An operator runs on the device of
/// its first offloaded weight; its other tensors are moved there.
///
/// Operators may run on several threads, as in backward passes on accelerators.
class TierKeeper final : public OffloadKeeper {
 public:
  TierKeeper(KeptWeights weights, TierOptions options);
  ~TierKeeper() override;

  void before_read(std::size_t tensor, bool is_filled) override;
  void call(GatedCall& call) override;
  [[nodiscard]] std::size_t num_places() const override {
    return options_.num_places;
  }

  [[nodiscard]] bool is_offloaded(std::size_t tensor) const override;
  void hold(std::size_t tensor, std::optional<c10::Device> device) override;
  void put_back(std::size_t tensor) override;
  bool begin_use(std::size_t tensor) override;
  void end_use(std::size_t tensor) override;

  /// Evicts all units except those that other threads are computing with.
  void evict_all();
  /// Fetches everything for good: tensors are ordinary tensors afterwards.
  void release_all();
  [[nodiscard]] DispatchStats stats() const;

 private:
  enum class State { absent, queued, fetching, fetched };
  struct Unit {
    State state = State::absent;
    bool fills_tensors = false;
    FetchedUnit fetched = {};
    std::exception_ptr failure = nullptr;
    bool is_instant = false;  // needs neither a read nor a copy
    bool is_cached = false;   // so it is fetched on use
  };
  using Lock = std::unique_lock<std::mutex>;
  struct Fetch;

  // tier_keeper.cpp: operators and their waits.
  std::unique_ptr<GatedTensor> make_gate(std::size_t tensor);
  void use(std::size_t unit, Lock& lock);
  void await(std::size_t unit, Lock& lock);
  void wait_for_arrival(std::size_t unit);
  void fill(std::size_t unit);
  [[nodiscard]] std::vector<const OffloadedTensor*> tensors_of(
      std::size_t unit) const;
  [[nodiscard]] c10::Device device_of_unit(std::size_t unit) const;

  // written_buffers.cpp: operators that change offloaded tensors.
  [[nodiscard]] std::vector<std::size_t> written_by(GatedCall& call) const;
  [[nodiscard]] static bool is_own_memory(
      const OffloadedTensor& kept,
      const at::Tensor& value);
  at::Tensor& fetched_value(std::size_t tensor);
  void begin_write(std::size_t tensor);
  void end_write(std::size_t tensor);

  // tier_memory.cpp: which units are in memory.
  [[nodiscard]] std::uint64_t bytes_of_unit(std::size_t unit) const;
  [[nodiscard]] bool has_memory_for(std::uint64_t num_bytes) const;
  void wait_for_memory(Lock& lock);
  void count_memory(std::uint64_t num_bytes);
  void plan_fetches();
  void evict(std::size_t unit);
  BufferPool& pool_of(std::size_t unit);
  void trim_pools(std::uint64_t num_bytes);

  // tier_fetches.cpp: how units are fetched.
  bool is_fetched_when_used(std::size_t unit);
  void fetch_or_queue(std::size_t unit, Lock& lock);
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

  KeptWeights weights_;
  TierOptions options_;
  std::vector<std::unique_ptr<GatedTensor>> gates_;  // by tensor; null if held
  mutable std::mutex mutex_;
  std::condition_variable queue_;
  std::condition_variable done_;
  std::vector<Unit> units_;
  std::deque<std::size_t> to_fetch_;
  AccessOrder order_;
  std::optional<std::size_t> current_;
  UnitPins pins_;
  BufferPool buffers_{/*is_pinned=*/false};
  BufferPool pinned_buffers_{/*is_pinned=*/true};
  /// Used by the fetch thread and the threads that it starts.
  BoxReader reader_;
  bool is_reading_ = false;
  std::size_t num_fetches_ = 0;  // in flight
  std::mutex copies_mutex_;      // never locked while holding mutex_
  DeviceCopies copies_;
  std::uint64_t bytes_in_memory_ = 0;
  LeavingMemory leaving_;
  DispatchStats stats_;
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace accelerate::detail
