#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "train/memory/free_ranges.h"
#include "train/memory/touched_pages.h"

namespace accelerate::detail {

/// Models the C library's heap as glibc manages it (malloc.c), to account for
/// memory between blocks in use, which cannot be returned to the system. Blocks
/// are aligned like LibTorch's.
///
/// Freed blocks are merged with free neighbours; a new block is taken from the
/// smallest free range that fits, or from the end; the end is returned to the
/// system once it is long. Blocks of at least the mmap threshold (its initial
/// value, 128 KiB) come from the system unless a free range fits.
class HeapModel {
 public:
  /// `holes`: sizes of free ranges between blocks that stay in use. Their pages
  /// become resident on first use, except pages shared with the blocks around
  /// them.
  explicit HeapModel(const std::vector<std::int64_t>& holes = {});

  using Range = MemoryRange;

  /// Returns nullopt if the block comes from the system instead.
  std::optional<Range> take(std::int64_t num_bytes);
  void give(const Range& block) { free(block); }
  /// Works like malloc_trim(0): free pages are no longer resident.
  void trim();
  /// Bytes that have become resident, in use or not.
  [[nodiscard]] std::int64_t resident() const { return pages_.num_bytes(); }

 private:
  void add_hole(std::int64_t size);
  [[nodiscard]] bool has_room(std::int64_t size) const;
  Range cut(std::int64_t size);
  Range take_end(std::int64_t size);
  void free(const Range& given);

  FreeRanges free_;  // never at the end
  /// End of the memory in use.
  std::int64_t end_ = 0;
  std::int64_t limit_ = 0;  // of what the system gave
  TouchedPages pages_;
};

}  // namespace accelerate::detail
