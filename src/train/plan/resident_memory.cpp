#include "train/plan/resident_memory.h"

#include <algorithm>
#include <iterator>

namespace accelerate::detail {

namespace {

// As in freed_blocks.cpp.
constexpr std::int64_t kKeptFrom = std::int64_t{1} << 20;
// glibc's initial M_MMAP_THRESHOLD; larger blocks are returned when freed.
constexpr std::int64_t kHeapBelow = 128 << 10;

}  // namespace

// Takes bytes from the heap, or gives them back if negative.
void ResidentMemory::change_heap(MemoryUse use, std::int64_t num_bytes) {
  const std::int64_t before = heap_.resident();
  if (num_bytes > 0) {
    heap_.take(num_bytes);
  } else {
    heap_.give(-num_bytes);
  }
  const std::int64_t grown = heap_.resident() - before;
  of(use) += num_bytes;
  of(MemoryUse::workspace) += grown - num_bytes;
  total_ += grown;
  note_peak();
}

void ResidentMemory::take(MemoryUse use, std::int64_t num_bytes) {
  if (num_bytes == 0) return;
  if (num_bytes < kHeapBelow) {
    change_heap(use, num_bytes);
    return;
  }
  of(use) += num_bytes;
  total_ += num_bytes;
  if (limit_ > 0 && num_bytes >= kKeptFrom) {
    const std::int64_t size =
        (num_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
    const auto found = std::find(kept_.rbegin(), kept_.rend(), size);
    if (found != kept_.rend()) {
      kept_.erase(std::next(found).base());
      kept_bytes_ -= size;
      of(MemoryUse::workspace) -= size;
      total_ -= size;
    }
  }
  note_peak();
}

void ResidentMemory::give(MemoryUse use, std::int64_t num_bytes) {
  if (num_bytes == 0) return;
  if (num_bytes < kHeapBelow) {
    change_heap(use, -num_bytes);
    return;
  }
  of(use) -= num_bytes;
  total_ -= num_bytes;
  if (limit_ == 0 || num_bytes < kKeptFrom) return;
  const std::int64_t size =
      (num_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  if (size > limit_) return;
  make_room(size);
  kept_.push_back(size);
  kept_bytes_ += size;
  of(MemoryUse::workspace) += size;
  total_ += size;
}

void ResidentMemory::take_unkept(MemoryUse use, std::int64_t num_bytes) {
  of(use) += num_bytes;
  total_ += num_bytes;
  note_peak();
}

void ResidentMemory::make_room(std::int64_t num_bytes) {
  auto first = kept_.begin();
  for (; first != kept_.end() && kept_bytes_ + num_bytes > limit_; ++first) {
    kept_bytes_ -= *first;
    of(MemoryUse::workspace) -= *first;
    total_ -= *first;
  }
  kept_.erase(kept_.begin(), first);
}

void ResidentMemory::move(
    MemoryUse from,
    MemoryUse to,
    std::int64_t num_bytes) {
  of(from) -= num_bytes;
  of(to) += num_bytes;
  if (total_ == peak_total_) peak_ = now_;
}

void ResidentMemory::note_peak() {
  if (total_ <= peak_total_) return;
  peak_total_ = total_;
  peak_ = now_;
}

void ResidentMemory::forget_peak() {
  peak_total_ = total_;
  peak_ = now_;
}

}  // namespace accelerate::detail
