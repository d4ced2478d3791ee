#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace accelerate::detail {

/// The unit in which memory becomes resident.
inline constexpr std::int64_t kPageBytes = 4096;

/// The bytes [first, second), counted from where the divided memory begins.
using MemoryRange = std::pair<std::int64_t, std::int64_t>;

/// Free ranges of memory, ordered by size and by place. All operations but
/// for_each() take logarithmic time.
class FreeRanges {
 public:
  /// Removes and returns the smallest range of at least `size`; of several, the
  /// first.
  std::optional<MemoryRange> take_best(std::int64_t size);
  /// Adds a range that has no free neighbours.
  void add(const MemoryRange& range);
  template <typename Function>
  void for_each(Function function) const {
    for (const auto& [begin, end] : ends_) function(MemoryRange{begin, end});
  }
  /// Removes the free neighbours of `range`; returns it merged with them.
  MemoryRange take_neighbours(MemoryRange range);

 private:
  void remove(std::map<std::int64_t, std::int64_t>::iterator place);

  std::map<std::int64_t, std::int64_t> ends_;                // by beginning
  std::set<std::pair<std::int64_t, std::int64_t>> by_size_;  // with beginning
};

}  // namespace accelerate::detail
