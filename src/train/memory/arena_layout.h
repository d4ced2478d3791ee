#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

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

/// Decides where blocks lie in a growing region of memory, without touching it.
/// Like glibc's heap: a block takes the smallest free range that fits or else
/// the end of the region, and freed blocks are merged with free neighbours.
/// Unlike in glibc's heap, every size is a multiple of the alignment, so a
/// block always fits where one of its size has been freed.
class ArenaLayout {
 public:
  static constexpr std::int64_t kAlignment = 64;  // LibTorch's gAlignment

  explicit ArenaLayout(std::int64_t max_bytes) : max_bytes_(max_bytes) {}

  /// Returns nullopt if the region would exceed `max_bytes`.
  std::optional<MemoryRange> take(std::int64_t num_bytes);
  void give(const MemoryRange& block);

  /// Chooses free memory that the caller returns to the system, because it
  /// takes `num_bytes` elsewhere: the longest ranges, as whole pages. Keeps a
  /// MiB, so that blocks that come and go do not need new pages each time.
  [[nodiscard]] std::vector<MemoryRange> return_free(std::int64_t num_bytes);

  /// Includes the range between the last block and limit().
  [[nodiscard]] std::vector<MemoryRange> free_ranges() const;

  /// The region needs memory up to here, a multiple of kPageBytes. give()
  /// lowers it in large steps only.
  [[nodiscard]] std::int64_t limit() const { return limit_; }

 private:
  FreeRanges free_;  // never at the end
  /// Where free ranges begin whose pages have been returned to the system.
  std::set<std::int64_t> returned_;
  std::int64_t end_ = 0;  // of the memory in use
  std::int64_t limit_ = 0;
  std::int64_t max_bytes_;
};

}  // namespace accelerate::detail
