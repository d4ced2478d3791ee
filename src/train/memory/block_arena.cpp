#include "train/memory/block_arena.h"

#include <algorithm>
#include <cstdlib>

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

namespace accelerate::detail {

namespace {

constexpr int kReserved = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

// Address space for as much memory as the machine has; none if the process's
// address space is limited.
std::size_t bytes_to_reserve() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY)
    return 0;
  const auto num_pages = ::sysconf(_SC_PHYS_PAGES);
  const auto page = ::sysconf(_SC_PAGESIZE);
  return num_pages > 0 && page == kPageBytes
      ? static_cast<std::size_t>(num_pages) * static_cast<std::size_t>(page)
      : 0;
}

}  // namespace

BlockArena::BlockArena() {
  const std::size_t wanted = bytes_to_reserve();
  if (wanted == 0) return;
  void* const memory = ::mmap(nullptr, wanted, PROT_NONE, kReserved, -1, 0);
  if (memory == MAP_FAILED) return;
  begin_ = static_cast<char*>(memory);
  num_reserved_ = wanted;
  layout_ = ArenaLayout(static_cast<std::int64_t>(wanted));
}

BlockArena::~BlockArena() {
  if (num_reserved_ > 0) ::munmap(begin_, num_reserved_);
}

void* BlockArena::take(std::size_t num_bytes) {
  const auto block = layout_.take(static_cast<std::int64_t>(num_bytes));
  if (!block) return nullptr;
  if (!adjust()) {
    layout_.give(*block);
    return nullptr;
  }
  ends_.insert(*block);
  return begin_ + block->first;
}

void BlockArena::give(void* memory) {
  const auto place = ends_.find(static_cast<char*>(memory) - begin_);
  layout_.give(*place);
  ends_.erase(place);
  adjust();
}

void BlockArena::return_free(std::optional<std::size_t> num_bytes) {
  const auto wanted =
      static_cast<std::int64_t>(num_bytes.value_or(num_reserved_));
  for (const auto& [begin, end] : layout_.return_free(wanted)) {
    ::madvise(
        begin_ + begin, static_cast<std::size_t>(end - begin), MADV_DONTNEED);
  }
}

// Makes the memory up to the layout's limit usable, and returns the rest.
bool BlockArena::adjust() {
  const std::int64_t limit = layout_.limit();
  if (limit == committed_) return true;
  char* const changed = begin_ + std::min(limit, committed_);
  const auto count = static_cast<std::size_t>(std::abs(limit - committed_));
  if (limit > committed_) {
    if (::mprotect(changed, count, PROT_READ | PROT_WRITE) != 0) return false;
  } else if (
      ::mmap(changed, count, PROT_NONE, kReserved | MAP_FIXED, -1, 0) ==
      MAP_FAILED) {
    return false;
  }
  committed_ = limit;
  return true;
}

}  // namespace accelerate::detail
