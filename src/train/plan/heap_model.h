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

  /// Begin and end of a block.
  using Range = std::pair<std::int64_t, std::int64_t>;

  /// Returns nullopt if the block comes from the system instead.
  std::optional<Range> take(std::int64_t num_bytes);
  void give(const Range& block) { free(block.first, block.second); }
  /// Bytes that have become resident, in use or not.
  [[nodiscard]] std::int64_t resident() const {
    return num_touched_ * kPageBytes;
  }

 private:
  void add_hole(std::int64_t size);
  [[nodiscard]] bool has_room(std::int64_t size) const;
  Range cut(std::int64_t size);
  Range take_end(std::int64_t size);
  void free(std::int64_t begin, std::int64_t end);
  void add_free(std::int64_t begin, std::int64_t end);
  void remove_free(std::map<std::int64_t, std::int64_t>::iterator place);
  void touch(const Range& range);
  void cut_end();

  /// Ends of free ranges by their begin; never at the end of the heap.
  std::map<std::int64_t, std::int64_t> free_;
  std::set<Range> free_by_size_;  // size and begin
  /// End of the memory in use.
  std::int64_t end_ = 0;
  std::int64_t limit_ = 0;        // of what the system gave
  std::vector<bool> is_touched_;  // by page
  std::int64_t num_touched_ = 0;
};

}  // namespace accelerate::detail
