#include "train/plan/heap_model.h"

#include <algorithm>
#include <iterator>

namespace accelerate::detail {

namespace {

// glibc's sizes: of a chunk's header, of the smallest chunk, and by how much the
// heap grows and is cut.
constexpr std::int64_t kHeader = 8;
constexpr std::int64_t kUnit = 16;
constexpr std::int64_t kSmallest = 32;
constexpr std::int64_t kTopPad = 128 << 10;
// The heap is cut only when a range of this size has become free.
constexpr std::int64_t kConsolidatedFrom = 64 << 10;
// LibTorch's gAlignment.
constexpr std::int64_t kAlignment = 64;

std::int64_t rounded(std::int64_t number, std::int64_t unit) {
  return (number + unit - 1) / unit * unit;
}

}  // namespace

// As posix_memalign(): a larger range is cut, and what is before and behind the
// aligned block is free again.
void HeapModel::take(std::int64_t num_bytes) {
  const std::int64_t size =
      std::max(rounded(num_bytes + kHeader, kUnit), kSmallest);
  const Range range = cut(size + kAlignment + kSmallest);
  std::int64_t begin = rounded(range.first + kUnit, kAlignment) - kUnit;
  if (begin != range.first && begin - range.first < kSmallest)
    begin += kAlignment;
  used_[num_bytes].emplace_back(begin, begin + size);
  if (begin > range.first) free(range.first, begin);
  if (range.second - (begin + size) >= kSmallest) {
    free(begin + size, range.second);
  } else {
    used_[num_bytes].back().second = range.second;
  }
}

void HeapModel::give(std::int64_t num_bytes) {
  const auto found = used_.find(num_bytes);
  if (found == used_.end() || found->second.empty()) return;
  const auto [begin, end] = found->second.back();
  found->second.pop_back();
  free(begin, end);
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
  touched_ = std::max(touched_, end_);
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
  limit_ = rounded(end_ + kTopPad, kPageBytes);
  touched_ = std::min(touched_, limit_);
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
