#pragma once

#include <cstddef>
#include <map>
#include <thread>
#include <vector>

namespace accelerate::detail {

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
