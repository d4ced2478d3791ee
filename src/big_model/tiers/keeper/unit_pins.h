#pragma once

#include <cstddef>
#include <map>
#include <thread>
#include <vector>

namespace accelerate::detail {

/// Units that operators compute with, by thread. Thread-safe if its calls are
/// under one lock.
class UnitPins {
 public:
  explicit UnitPins(std::size_t num_units) : num_pins_(num_units, 0) {}

  /// Returns false if this thread has pinned the unit already.
  bool pin(std::size_t unit);
  /// Does nothing if this thread has not pinned it.
  void unpin(std::size_t unit);
  /// Unpins what this thread has pinned.
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
