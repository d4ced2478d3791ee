#include "train/plan/heap_model.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

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
  is_touched_.resize(static_cast<std::size_t>(limit_ / kPageBytes), false);
  is_touched_[static_cast<std::size_t>(begin / kPageBytes)] = true;
  is_touched_[static_cast<std::size_t>(end / kPageBytes)] = true;
  add_free(begin, end);
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
  touch(block);
  if (begin > range.first) free(range.first, begin);
  if (is_cut) free(block.second, range.second);
  return block;
}

bool HeapModel::has_room(std::int64_t size) const {
  return free_by_size_.lower_bound({size, 0}) != free_by_size_.end() ||
      limit_ - end_ >= size + kSmallest;
}

HeapModel::Range HeapModel::cut(std::int64_t size) {
  const auto best = free_by_size_.lower_bound({size, 0});
  if (best == free_by_size_.end()) return take_end(size);
  const std::int64_t begin = best->second;
  const auto place = free_.find(begin);
  const std::int64_t end = place->second;
  remove_free(place);
  if (end - (begin + size) < kSmallest) return {begin, end};
  add_free(begin + size, end);
  return {begin, begin + size};
}

HeapModel::Range HeapModel::take_end(std::int64_t size) {
  const std::int64_t begin = end_;
  end_ += size;
  if (end_ > limit_) limit_ = rounded(end_ + kTopPad, kPageBytes);
  return {begin, end_};
}

void HeapModel::free(std::int64_t begin, std::int64_t end) {
  auto next = free_.lower_bound(begin);
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->second == begin) {
      begin = before->first;
      remove_free(before);
    }
  }
  next = free_.lower_bound(begin);
  if (next != free_.end() && next->first == end) {
    end = next->second;
    remove_free(next);
  }
  if (end != end_) {
    add_free(begin, end);
    return;
  }
  end_ = begin;
  if (end - begin < kConsolidatedFrom || limit_ - end_ < kTopPad + kPageBytes)
    return;
  cut_end();
}

void HeapModel::cut_end() {
  limit_ = rounded(end_ + kTopPad, kPageBytes);
  const auto num_pages = static_cast<std::size_t>(limit_ / kPageBytes);
  if (is_touched_.size() <= num_pages) return;
  num_touched_ -= std::count(
      is_touched_.begin() + static_cast<std::ptrdiff_t>(num_pages),
      is_touched_.end(),
      true);
  is_touched_.resize(num_pages);
}

void HeapModel::touch(const Range& range) {
  const auto first = static_cast<std::size_t>(range.first / kPageBytes);
  const auto last = static_cast<std::size_t>((range.second - 1) / kPageBytes);
  if (is_touched_.size() <= last) is_touched_.resize(last + 1, false);
  for (std::size_t page = first; page <= last; ++page) {
    if (is_touched_[page]) continue;
    is_touched_[page] = true;
    ++num_touched_;
  }
}

void HeapModel::add_free(std::int64_t begin, std::int64_t end) {
  free_.emplace(begin, end);
  free_by_size_.emplace(end - begin, begin);
}

void HeapModel::remove_free(
    std::map<std::int64_t, std::int64_t>::iterator place) {
  free_by_size_.erase({place->second - place->first, place->first});
  free_.erase(place);
}

}  // namespace accelerate::detail
