#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <accelerate/big_model.h>

#include "big_model/model/offload_keeper.h"
#include "big_model/tiers/keeper/access_order.h"
#include "big_model/tiers/keeper/resident_units.h"
#include "big_model/tiers/keeper/unit_fetcher.h"
#include "gate/gate.h"

namespace accelerate::detail {

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

/// Keeps offloaded weights behind gates: decides which units are fetched and
/// evicted, in the order in which it expects them, and fills their tensors when
/// an operator uses one. An operator runs on the device of its first offloaded
/// weight; its other tensors are moved there.
///
/// Operators may run on several threads, as in backward passes on accelerators.
/// One mutex guards everything, the units and their fetcher included.
class TierKeeper final : public OffloadKeeper {
 public:
  TierKeeper(KeptWeights weights, TierOptions options);

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
  using Lock = UnitFetcher::Lock;
  using State = ResidentUnits::State;

  // tier_keeper.cpp: gates, and operators that wait for units.
  std::unique_ptr<GatedTensor> make_gate(std::size_t tensor);
  void use(std::size_t unit, Lock& lock);
  void fill(std::size_t unit);

  // fetch_plan.cpp: which units are in memory.
  void plan_fetches();
  void evict(std::size_t unit);

  // written_buffers.cpp: operators that change offloaded tensors.
  [[nodiscard]] std::vector<std::size_t> written_by(GatedCall& call) const;
  at::Tensor& fetched_value(std::size_t tensor);
  void begin_write(std::size_t tensor);
  void end_write(std::size_t tensor);

  KeptWeights weights_;
  TierOptions options_;
  mutable std::mutex mutex_;
  ResidentUnits units_;
  std::vector<std::unique_ptr<GatedTensor>> gates_;  // by tensor; null if held
  std::vector<bool> fills_tensors_;                  // by unit
  AccessOrder order_;
  std::optional<std::size_t> current_;  // the unit used last
  UnitPins pins_;
  UnitFetcher fetcher_;
};

}  // namespace accelerate::detail
