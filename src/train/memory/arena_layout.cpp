#include "train/memory/arena_layout.h"

namespace accelerate::detail {

namespace {

// As glibc: the step by which the region grows and shrinks, and the size of a
// freed range from which it shrinks.
constexpr std::int64_t kStep = 128 << 10;
constexpr std::int64_t kShrinkingFrom = 64 << 10;

std::int64_t rounded_up(std::int64_t number, std::int64_t unit) {
  return (number + unit - 1) / unit * unit;
}

}  // namespace

std::optional<MemoryRange> ArenaLayout::take(std::int64_t num_bytes) {
  const std::int64_t size = rounded_up(num_bytes, kAlignment);
  if (const auto best = free_.take_best(size)) {
    const MemoryRange block{best->first, best->first + size};
    if (block.second < best->second) free_.add({block.second, best->second});
    return block;
  }
  if (size > limit_ - end_) {
    const std::int64_t limit = rounded_up(end_ + size + kStep, kPageBytes);
    if (limit > max_bytes_) return std::nullopt;
    limit_ = limit;
  }
  const MemoryRange block{end_, end_ + size};
  end_ = block.second;
  return block;
}

void ArenaLayout::give(const MemoryRange& block) {
  const MemoryRange range = free_.take_neighbours(block);
  if (range.second != end_) {
    free_.add(range);
    return;
  }
  end_ = range.first;
  if (range.second - range.first >= kShrinkingFrom &&
      limit_ - end_ >= kStep + kPageBytes)
    limit_ = rounded_up(end_ + kStep, kPageBytes);
}

}  // namespace accelerate::detail
