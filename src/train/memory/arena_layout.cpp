#include "train/memory/arena_layout.h"

#include <algorithm>
#include <iterator>

namespace accelerate::detail {

namespace {

// The region grows and shrinks in steps of this size, and shrinks only when a
// freed range at its end is at least kShrinkingFrom long. The values are
// glibc's.
constexpr std::int64_t kStep = 128 << 10;
constexpr std::int64_t kShrinkingFrom = 64 << 10;
// return_free() leaves shorter ranges alone, and keeps this much memory in all.
constexpr std::int64_t kShortestReturned = 64 << 10;
constexpr std::int64_t kKeptFree = 1 << 20;

std::int64_t rounded_up(std::int64_t number, std::int64_t unit) {
  return (number + unit - 1) / unit * unit;
}

}  // namespace

std::optional<MemoryRange> ArenaLayout::take(std::int64_t num_bytes) {
  const std::int64_t size = rounded_up(num_bytes, kAlignment);
  if (const auto best = free_.take_best(size)) {
    const MemoryRange block{best->first, best->first + size};
    const bool was_returned = returned_.erase(block.first) > 0;
    if (block.second == best->second) return block;
    free_.add({block.second, best->second});
    if (was_returned) returned_.insert(block.second);
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
  returned_.erase(
      returned_.lower_bound(range.first), returned_.lower_bound(range.second));
  if (range.second != end_) {
    free_.add(range);
    return;
  }
  end_ = range.first;
  if (range.second - range.first >= kShrinkingFrom &&
      limit_ - end_ >= kStep + kPageBytes)
    limit_ = rounded_up(end_ + kStep, kPageBytes);
}

std::vector<MemoryRange> ArenaLayout::free_ranges() const {
  std::vector<MemoryRange> ranges;
  free_.for_each([&](const MemoryRange& range) { ranges.push_back(range); });
  ranges.emplace_back(end_, limit_);
  return ranges;
}

std::vector<MemoryRange> ArenaLayout::return_free(std::int64_t num_bytes) {
  std::vector<MemoryRange> ranges;
  std::int64_t resident = 0;
  free_.for_each([&](const MemoryRange& range) {
    if (range.second - range.first < kShortestReturned ||
        returned_.contains(range.first))
      return;
    ranges.push_back(range);
    resident += range.second - range.first;
  });
  std::ranges::stable_sort(
      ranges, [](const MemoryRange& one, const MemoryRange& other) {
        return one.second - one.first > other.second - other.first;
      });
  std::int64_t wanted = std::min(num_bytes, resident - kKeptFree);
  std::size_t count = 0;
  for (; count < ranges.size() && wanted > 0; ++count) {
    auto& [begin, end] = ranges[count];
    wanted -= end - begin;
    returned_.insert(begin);
    begin = rounded_up(begin, kPageBytes);
    end = end / kPageBytes * kPageBytes;
  }
  ranges.resize(count);
  return ranges;
}

std::optional<MemoryRange> FreeRanges::take_best(std::int64_t size) {
  const auto best = by_size_.lower_bound({size, 0});
  if (best == by_size_.end()) return std::nullopt;
  const auto place = ends_.find(best->second);
  const MemoryRange range = *place;
  remove(place);
  return range;
}

void FreeRanges::add(const MemoryRange& range) {
  ends_.insert(range);
  by_size_.emplace(range.second - range.first, range.first);
}

MemoryRange FreeRanges::take_neighbours(MemoryRange range) {
  const auto after = ends_.find(range.second);
  if (after != ends_.end()) {
    range.second = after->second;
    remove(after);
  }
  const auto next = ends_.lower_bound(range.first);
  if (next == ends_.begin()) return range;
  const auto before = std::prev(next);
  if (before->second == range.first) {
    range.first = before->first;
    remove(before);
  }
  return range;
}

void FreeRanges::remove(std::map<std::int64_t, std::int64_t>::iterator place) {
  by_size_.erase({place->second - place->first, place->first});
  ends_.erase(place);
}

}  // namespace accelerate::detail
