#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <c10/core/Device.h>

#include "big_model/tiers/keeper/unit_memory.h"
#include "big_model/tiers/units/weight_units.h"

namespace accelerate::detail {

/// The weights that a TierKeeper manages.
struct KeptWeights {
  std::vector<OffloadedTensor> tensors;
  std::vector<WeightUnit> units;
};

/// Which units are in memory, with their values. The memory counts exactly the
/// units that are being fetched or fetched. The caller must serialize calls
/// with a lock; `weights` must outlive this object.
class ResidentUnits {
 public:
  enum class State { absent, queued, fetching, fetched };

  /// `limit`: see UnitMemory; 0 means twice the largest unit.
  ResidentUnits(
      const KeptWeights& weights,
      std::uint64_t limit,
      bool is_unlimited);

  [[nodiscard]] std::size_t size() const { return units_.size(); }
  [[nodiscard]] std::vector<const OffloadedTensor*> tensors_of(
      std::size_t unit) const;
  /// The device on which all tensors of a unit are used.
  [[nodiscard]] c10::Device device_of(std::size_t unit) const;
  /// Whether a unit needs neither a read nor a copy, nor memory.
  [[nodiscard]] bool is_instant(std::size_t unit) const {
    return units_[unit].is_instant;
  }
  /// Bytes that count against the limit.
  [[nodiscard]] std::uint64_t bytes_of(std::size_t unit) const {
    return is_instant(unit) ? 0 : weights_.units[unit].num_bytes;
  }

  [[nodiscard]] State state(std::size_t unit) const {
    return units_[unit].state;
  }
  /// Whether a unit must be fetched, and its fetch has not begun.
  [[nodiscard]] bool is_missing(std::size_t unit) const {
    return !is_instant(unit) && state(unit) < State::fetching;
  }
  /// The values of a fetched unit.
  [[nodiscard]] FetchedUnit& fetched(std::size_t unit) {
    return units_[unit].fetched;
  }
  /// Recycled host memory for a unit's values.
  [[nodiscard]] BufferPool& buffers_of(std::size_t unit) {
    return memory_.buffers(device_of(unit));
  }
  [[nodiscard]] UnitMemory& memory() { return memory_; }
  [[nodiscard]] const UnitMemory& memory() const { return memory_; }

  void set_queued(std::size_t unit, bool is_queued) {
    units_[unit].state = is_queued ? State::queued : State::absent;
  }
  void begin_fetch(std::size_t unit);
  void abandon_fetch(std::size_t unit);
  void arrive(std::size_t unit, FetchedUnit fetched);
  void evict(std::size_t unit);

 private:
  struct Unit {
    State state = State::absent;
    bool is_instant = false;
    FetchedUnit fetched = {};
  };

  const KeptWeights& weights_;
  std::vector<Unit> units_;
  UnitMemory memory_;
};

}  // namespace accelerate::detail
