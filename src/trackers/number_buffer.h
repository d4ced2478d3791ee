#pragma once

#include <cstddef>
#include <string>

#include <accelerate/tracker.h>

namespace accelerate::detail {

/// Whether all values are real numbers.
bool are_real_numbers(const TrackedValues& values);

/// Real numbers that were logged, one after another in one piece of memory,
/// which is used again once it is clear.
class NumberBuffer {
 public:
  /// `numbers`: real numbers.
  void add(const TrackedValues& numbers, const LogTime& time);
  /// What add() would take, in bytes.
  static std::size_t size_of(const TrackedValues& numbers);
  [[nodiscard]] std::size_t num_bytes() const { return bytes_.size(); }
  /// Reads what was added at `offset`, and returns where the next begins.
  std::size_t read(std::size_t offset, TrackedValues& numbers, LogTime& time)
      const;
  void clear();
  void swap(NumberBuffer& other) noexcept { bytes_.swap(other.bytes_); }

 private:
  std::string bytes_;
};

}  // namespace accelerate::detail
