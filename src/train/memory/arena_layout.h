#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "train/memory/free_ranges.h"

namespace accelerate::detail {

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
