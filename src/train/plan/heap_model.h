#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace accelerate::detail {

/// The unit in which memory becomes resident.
inline constexpr std::int64_t kPageBytes = 4096;

/// The C library's heap as glibc manages it (malloc.c): where blocks of less than
/// the mmap threshold lie, so that memory between blocks in use, which cannot be
/// returned to the system, is known. Blocks are aligned as LibTorch's are.
///
/// Freed blocks are merged with free neighbours; a new one is taken from the
/// smallest free one that holds it, or from the end; the end is returned to the
/// system once it is long.
class HeapModel {
 public:
  void take(std::int64_t num_bytes);
  /// Frees the newest block of that size.
  void give(std::int64_t num_bytes);
  /// Bytes that are resident, in use or not.
  [[nodiscard]] std::int64_t resident() const { return touched_; }

 private:
  using Range = std::pair<std::int64_t, std::int64_t>;

  Range cut(std::int64_t size);
  Range take_end(std::int64_t size);
  void free(std::int64_t begin, std::int64_t end);
  void add_free(std::int64_t begin, std::int64_t end);
  void remove_free(std::map<std::int64_t, std::int64_t>::iterator place);

  /// Ends of free ranges by where they begin; never at the end of the heap.
  std::map<std::int64_t, std::int64_t> free_;
  std::set<Range> free_by_size_;  // size and begin
  /// Ranges in use by the bytes that were asked for, the newest last.
  std::map<std::int64_t, std::vector<Range>> used_;
  /// Where what is in use ends.
  std::int64_t end_ = 0;
  std::int64_t limit_ = 0;  // of what the system gave
  std::int64_t touched_ = 0;
};

}  // namespace accelerate::detail
