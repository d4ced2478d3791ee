#include "train/memory/resident_memory.h"

#include <algorithm>
#include <iterator>

#include "train/memory/freed_blocks.h"

namespace accelerate::detail {

namespace {

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
  if (num_bytes == 0) return {};
  const std::int64_t before = heap_.resident() + arena_pages_.num_bytes();
  const Block block = place(num_bytes);
  std::int64_t resident = 0;
  if (block.from == Block::From::kept) resident = take_kept(num_bytes);
  if (block.from == Block::From::c_library)
    resident = pages_of(kBeforeBlock + num_bytes);
  resident += heap_.resident() + arena_pages_.num_bytes() - before;
  change(use, num_bytes, resident);
  note_peak();
  return block;
}

// As in freed_blocks.cpp.
ResidentMemory::Block ResidentMemory::place(std::int64_t num_bytes) {
  using From = Block::From;
  const auto size = static_cast<std::size_t>(num_bytes);
  if (has_arena_ && size >= kArenaBlocksFrom && size < kKeptBlocksFrom) {
    if (const auto range = arena_.take(num_bytes)) {
      arena_pages_.touch(*range);
      return {num_bytes, From::arena, *range};
    }
  }
  if (limit_ > 0 && size >= kKeptBlocksFrom) return {num_bytes, From::kept};
  if (const auto range = heap_.take(num_bytes))
    return {num_bytes, From::heap, *range};
  return {num_bytes, From::c_library};
}

void ResidentMemory::give(MemoryUse use, const Block& block) {
  if (block.num_bytes == 0) return;
  const std::int64_t before = heap_.resident() + arena_pages_.num_bytes();
  std::int64_t resident = 0;
  switch (block.from) {
    case Block::From::heap:
      heap_.give(block.range);
      break;
    case Block::From::arena:
      arena_.give(block.range);
      arena_pages_.drop_from(arena_.limit());
      break;
    case Block::From::c_library:
      resident = -pages_of(kBeforeBlock + block.num_bytes);
      break;
    case Block::From::kept:
      resident = give_kept(block.num_bytes);
  }
  resident += heap_.resident() + arena_pages_.num_bytes() - before;
  change(use, -block.num_bytes, resident);
}

// Returns the bytes that become resident.
std::int64_t ResidentMemory::take_kept(std::int64_t num_bytes) {
  const std::int64_t size = pages_of(num_bytes);
  const auto found = std::find(kept_.rbegin(), kept_.rend(), size);
  if (found == kept_.rend()) {
    for (const MemoryRange& range : arena_.return_free(size))
      arena_pages_.drop_within(range);
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
  const std::int64_t before = heap_.resident();
  heap_.trim();
  change(MemoryUse::workspace, 0, heap_.resident() - before);
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
