#include "train/memory/free_ranges.h"

#include <iterator>

namespace accelerate::detail {

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
