#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include <c10/core/Device.h>

#include "big_model/tiers/units/buffer_pool.h"
#include "big_model/tiers/units/device_copies.h"
#include "big_model/tiers/units/weight_units.h"

namespace accelerate::detail {

/// The memory of units: how much of a limit they take, and the host memory that
/// they are read into. The caller must serialize calls with a lock.
class UnitMemory {
 public:
  /// `is_unlimited`: units may be fetched although they exceed the limit.
  UnitMemory(std::uint64_t limit, bool is_unlimited)
      : limit_(limit), is_unlimited_(is_unlimited) {}

  [[nodiscard]] std::uint64_t limit() const { return limit_; }
  [[nodiscard]] bool has_room_for(std::uint64_t num_bytes) const {
    return is_unlimited_ || bytes_ + num_bytes <= limit_;
  }
  /// Bytes of the units that are in memory or on their way.
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] std::uint64_t peak_bytes() const { return peak_bytes_; }

  /// Counts a unit whose fetch begins.
  void add(std::uint64_t num_bytes);
  /// Subtracts a unit whose fetch failed.
  void remove(std::uint64_t num_bytes) { bytes_ -= num_bytes; }
  /// Subtracts an evicted unit, whose memory stays in use until its device has
  /// finished the queued work.
  void release(std::uint64_t num_bytes, c10::Device device);
  /// If memory is short, unlocks `lock` and waits until the device has finished
  /// the queued work that uses evicted units.
  void wait_for_released(std::unique_lock<std::mutex>& lock);

  /// Recycled host memory for values that `device` computes with.
  [[nodiscard]] BufferPool& buffers(c10::Device device) {
    return device.is_cpu() ? buffers_ : pinned_buffers_;
  }
  void clear_buffers();

 private:
  std::uint64_t limit_;
  bool is_unlimited_;
  std::uint64_t bytes_ = 0;
  std::uint64_t peak_bytes_ = 0;
  LeavingMemory leaving_;
  BufferPool buffers_{/*is_pinned=*/false};
  BufferPool pinned_buffers_{/*is_pinned=*/true};
};

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

/// Tracks which units each thread is computing with. The caller must serialize
/// calls with a lock.
class UnitPins {
 public:
  explicit UnitPins(std::size_t num_units) : num_pins_(num_units, 0) {}

  /// Returns false if this thread has already pinned the unit.
  bool pin(std::size_t unit);
  /// No-op if this thread has not pinned the unit.
  void unpin(std::size_t unit);
  /// Unpins everything that this thread has pinned.
  void unpin_all();
  [[nodiscard]] bool is_pinned(std::size_t unit) const {
    return num_pins_[unit] > 0;
  }
  [[nodiscard]] bool is_pinned_by_others(std::size_t unit) const;

 private:
  std::vector<int> num_pins_;  // by unit
  std::map<std::thread::id, std::vector<std::size_t>> pinned_;
};

}  // namespace accelerate::detail
