#pragma once

#include <cstddef>
#include <string>

#include <accelerate/tracker.h>

namespace accelerate::detail {

/// Whether all values are real numbers.
bool are_real_numbers(const TrackedValues& values);

/// Logged real numbers, one after another in one block of memory, which is
/// reused after clear().
class NumberBuffer {
 public:
  /// `numbers`: real numbers.
  void add(const TrackedValues& numbers, const LogTime& time);
  /// Number of bytes that add() would take.
  static std::size_t size_of(const TrackedValues& numbers);
  [[nodiscard]] std::size_t num_bytes() const { return bytes_.size(); }
  /// Reads what was added at `offset`, and returns the offset of the next
  /// entry.
  std::size_t read(std::size_t offset, TrackedValues& numbers, LogTime& time)
      const;
  void clear();
  void swap(NumberBuffer& other) noexcept { bytes_.swap(other.bytes_); }

 private:
  std::string bytes_;
};

}  // namespace accelerate::detail
