#include "train/memory/heap_model.h"

#include <algorithm>

namespace accelerate::detail {

namespace {

// glibc's sizes: a chunk's header, its alignment, the smallest chunk, and the
// step by which the heap grows and is trimmed.
constexpr std::int64_t kHeader = 8;
constexpr std::int64_t kUnit = 16;
constexpr std::int64_t kSmallest = 32;
constexpr std::int64_t kTopPad = 128 << 10;
// The heap is trimmed only after a range of this size has become free.
constexpr std::int64_t kConsolidatedFrom = 64 << 10;
// LibTorch's gAlignment.
constexpr std::int64_t kAlignment = 64;
// glibc's initial M_MMAP_THRESHOLD.
constexpr std::int64_t kSystemFrom = 128 << 10;

std::int64_t rounded(std::int64_t number, std::int64_t unit) {
  return (number + unit - 1) / unit * unit;
}

}  // namespace

HeapModel::HeapModel(const std::vector<std::int64_t>& holes) {
  for (const std::int64_t size : holes) add_hole(size);
}

// Adds a hole at the end of the heap, after the last bytes of a block in use.
void HeapModel::add_hole(std::int64_t size) {
  size = size / kUnit * kUnit;
  if (size < kSmallest) return;
  const std::int64_t begin = limit_ + kUnit;
  const std::int64_t end = begin + size;
  limit_ = end_ = rounded(end + kUnit, kPageBytes);
  // The pages shared with the blocks around it are resident already.
  pages_.touch({begin, begin + 1}, false);
  pages_.touch({end, end + 1}, false);
  free_.add({begin, end});
}

// Works like posix_memalign(): takes a larger range, and frees the memory
// before and after the aligned block.
std::optional<HeapModel::Range> HeapModel::take(std::int64_t num_bytes) {
  const std::int64_t size =
      std::max(rounded(num_bytes + kHeader, kUnit), kSmallest);
  const std::int64_t with_slack = size + kAlignment + kSmallest;
  if (with_slack >= kSystemFrom && !has_room(with_slack)) return std::nullopt;
  const Range range = cut(with_slack);
  std::int64_t begin = rounded(range.first + kUnit, kAlignment) - kUnit;
  if (begin != range.first && begin - range.first < kSmallest)
    begin += kAlignment;
  Range block{begin, begin + size};
  const bool is_cut = range.second - block.second >= kSmallest;
  if (!is_cut) block.second = range.second;
  pages_.touch(block);
  if (begin > range.first) free({range.first, begin});
  if (is_cut) free({block.second, range.second});
  return block;
}

bool HeapModel::has_room(std::int64_t size) const {
  return free_.has(size) || limit_ - end_ >= size + kSmallest;
}

HeapModel::Range HeapModel::cut(std::int64_t size) {
  const auto best = free_.take_best(size);
  if (!best) return take_end(size);
  const auto [begin, end] = *best;
  if (end - (begin + size) < kSmallest) return {begin, end};
  free_.add({begin + size, end});
  return {begin, begin + size};
}

HeapModel::Range HeapModel::take_end(std::int64_t size) {
  const std::int64_t begin = end_;
  end_ += size;
  if (end_ > limit_) limit_ = rounded(end_ + kTopPad, kPageBytes);
  return {begin, end_};
}

void HeapModel::free(const Range& given) {
  const Range range = free_.take_neighbours(given);
  if (range.second != end_) {
    free_.add(range);
    return;
  }
  end_ = range.first;
  if (range.second - range.first < kConsolidatedFrom ||
      limit_ - end_ < kTopPad + kPageBytes)
    return;
  limit_ = rounded(end_ + kTopPad, kPageBytes);
  pages_.drop_from(limit_);
}

void HeapModel::trim() {
  free_.for_each([&](const Range& range) { pages_.drop_within(range); });
  limit_ = rounded(end_, kPageBytes);
  pages_.drop_from(limit_);
}

}  // namespace accelerate::detail
