#include "train/plan/resident_memory.h"

#include <algorithm>
#include <iterator>

namespace accelerate::detail {

namespace {

// As in freed_blocks.cpp.
constexpr std::int64_t kKeptFrom = std::int64_t{1} << 20;
// The C library's header, and LibTorch's alignment after it.
constexpr std::int64_t kBeforeBlock = 64;

std::int64_t pages_of(std::int64_t num_bytes) {
  return (num_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

}  // namespace

void ResidentMemory::change(
    MemoryUse use,
    std::int64_t num_bytes,
    std::int64_t resident) {
  of(use) += num_bytes;
  of(MemoryUse::workspace) += resident - num_bytes;
  total_ += resident;
}

ResidentMemory::Block ResidentMemory::take(
    MemoryUse use,
    std::int64_t num_bytes) {
  // As in freed_blocks.cpp, whose blocks have no header and do not come from
  // the heap.
  Block block{
      .num_bytes = num_bytes,
      .may_be_kept = limit_ > 0 && num_bytes >= kKeptFrom};
  if (num_bytes == 0) return block;
  if (block.may_be_kept) {
    const std::int64_t size = pages_of(num_bytes);
    const auto found = std::find(kept_.rbegin(), kept_.rend(), size);
    const bool was_kept = found != kept_.rend();
    if (was_kept) {
      kept_.erase(std::next(found).base());
      kept_bytes_ -= size;
    }
    change(use, num_bytes, was_kept ? 0 : size);
  } else {
    const std::int64_t before = heap_.resident();
    block.in_heap = heap_.take(num_bytes);
    change(
        use,
        num_bytes,
        block.in_heap ? heap_.resident() - before
                      : pages_of(kBeforeBlock + num_bytes));
  }
  note_peak();
  return block;
}

void ResidentMemory::give(MemoryUse use, const Block& block) {
  if (block.num_bytes == 0) return;
  if (block.in_heap) {
    const std::int64_t before = heap_.resident();
    heap_.give(*block.in_heap);
    change(use, -block.num_bytes, heap_.resident() - before);
    return;
  }
  if (!block.may_be_kept) {
    change(use, -block.num_bytes, -pages_of(kBeforeBlock + block.num_bytes));
    return;
  }
  const std::int64_t size = pages_of(block.num_bytes);
  change(use, -block.num_bytes, -size);
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

void ResidentMemory::move(MemoryUse from, MemoryUse to, const Block& block) {
  of(from) -= block.num_bytes;
  of(to) += block.num_bytes;
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
