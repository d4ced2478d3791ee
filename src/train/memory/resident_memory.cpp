#include "train/memory/resident_memory.h"

#include <algorithm>
#include <iterator>

#include "train/memory/freed_blocks.h"

namespace accelerate::detail {

namespace {

// The C library's header, and LibTorch's alignment after it.
constexpr std::int64_t kBeforeBlock = 64;
// glibc's initial M_MMAP_THRESHOLD.
constexpr std::int64_t kSystemFrom = 128 << 10;

std::int64_t num_pages(std::int64_t num_bytes) {
  return (num_bytes + kPageBytes - 1) / kPageBytes;
}

std::int64_t pages_of(std::int64_t num_bytes) {
  return num_pages(num_bytes) * kPageBytes;
}

}  // namespace

MemoryRange ResidentRegion::take(std::int64_t num_bytes) {
  const MemoryRange block = layout_.take(num_bytes).value();
  mark(block.first / kPageBytes, num_pages(block.second), true);
  return block;
}

void ResidentRegion::give(const MemoryRange& block) {
  layout_.give(block);
  mark(
      layout_.limit() / kPageBytes,
      static_cast<std::int64_t>(is_resident_.size()),
      false);
}

void ResidentRegion::return_free(std::int64_t num_bytes) {
  for (const auto& [begin, end] : layout_.return_free(num_bytes))
    mark(num_pages(begin), end / kPageBytes, false);
}

void ResidentRegion::trim() {
  for (const auto& [begin, end] : layout_.free_ranges())
    mark(num_pages(begin), end / kPageBytes, false);
}

void ResidentRegion::mark(
    std::int64_t first_page,
    std::int64_t end_page,
    bool is_resident) {
  const auto end = static_cast<std::size_t>(end_page);
  if (is_resident_.size() < end) is_resident_.resize(end, false);
  for (auto page = static_cast<std::size_t>(first_page); page < end; ++page) {
    if (is_resident_[page] == is_resident) continue;
    is_resident_[page] = is_resident;
    num_resident_ += is_resident ? 1 : -1;
  }
}

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
  if (num_bytes == 0) return {};
  const std::int64_t before = resident_in_regions();
  const Block block = place(num_bytes);
  std::int64_t resident = 0;
  if (block.from == Block::From::kept) resident = take_kept(num_bytes);
  if (block.from == Block::From::c_library)
    resident = pages_of(kBeforeBlock + num_bytes);
  resident += resident_in_regions() - before;
  change(use, num_bytes, resident);
  note_peak();
  return block;
}

// Places a block as freed_blocks.cpp does.
ResidentMemory::Block ResidentMemory::place(std::int64_t num_bytes) {
  using From = Block::From;
  const auto size = static_cast<std::size_t>(num_bytes);
  if (has_arena_ && size >= kArenaBlocksFrom && size < kKeptBlocksFrom)
    return {num_bytes, From::arena, arena_.take(num_bytes)};
  if (limit_ > 0 && size >= kKeptBlocksFrom) return {num_bytes, From::kept};
  if (kBeforeBlock + num_bytes >= kSystemFrom)
    return {num_bytes, From::c_library};
  return {num_bytes, From::heap, heap_.take(kBeforeBlock + num_bytes)};
}

void ResidentMemory::give(MemoryUse use, const Block& block) {
  if (block.num_bytes == 0) return;
  const std::int64_t before = resident_in_regions();
  std::int64_t resident = 0;
  switch (block.from) {
    case Block::From::heap:
      heap_.give(block.range);
      break;
    case Block::From::arena:
      arena_.give(block.range);
      break;
    case Block::From::c_library:
      resident = -pages_of(kBeforeBlock + block.num_bytes);
      break;
    case Block::From::kept:
      resident = give_kept(block.num_bytes);
  }
  resident += resident_in_regions() - before;
  change(use, -block.num_bytes, resident);
}

// Returns the bytes that become resident.
std::int64_t ResidentMemory::take_kept(std::int64_t num_bytes) {
  const std::int64_t size = pages_of(num_bytes);
  const auto found = std::find(kept_.rbegin(), kept_.rend(), size);
  if (found == kept_.rend()) {
    arena_.return_free(size);
    return size;
  }
  kept_.erase(std::next(found).base());
  kept_bytes_ -= size;
  return 0;
}

// Returns the change of resident memory.
std::int64_t ResidentMemory::give_kept(std::int64_t num_bytes) {
  const std::int64_t size = pages_of(num_bytes);
  if (size > limit_) return -size;
  make_room(size);
  kept_.push_back(size);
  kept_bytes_ += size;
  return 0;
}

void ResidentMemory::return_free_memory() {
  const std::int64_t before = heap_.num_bytes();
  heap_.trim();
  change(MemoryUse::workspace, 0, heap_.num_bytes() - before);
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
