#include "base/files/page_cache.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <vector>

namespace accelerate::detail {

namespace {

// The structures of cachestat(), which Linux has had since 6.5 and C libraries
// do not declare yet.
struct CachestatRange {
  std::uint64_t offset;
  std::uint64_t size;
};
struct Cachestat {
  std::uint64_t num_cached;
  std::uint64_t num_dirty;
  std::uint64_t num_writeback;
  std::uint64_t num_evicted;
  std::uint64_t num_recently_evicted;
};

std::optional<std::uint64_t>
count_by_cachestat(int file, std::uint64_t offset, std::uint64_t size) {
#ifdef SYS_cachestat
  constexpr long kCall = SYS_cachestat;
#else
  constexpr long kCall = 451;  // on all architectures
#endif
  CachestatRange range{offset, size};
  Cachestat counted{};
  if (::syscall(kCall, file, &range, &counted, 0U) != 0) return std::nullopt;
  return counted.num_cached;
}

// Unless the caller owns the file or may write to it, mincore() reports that
// all pages are resident.
bool is_told_by_mincore(int file) {
  struct stat status {};
  return ::fstat(file, &status) == 0 &&
      (status.st_uid == ::geteuid() || ::geteuid() == 0);
}

std::optional<std::uint64_t>
count_by_mincore(int file, std::uint64_t begin, std::uint64_t end) {
  if (!is_told_by_mincore(file)) return std::nullopt;
  begin = begin / page_bytes() * page_bytes();
  const std::uint64_t size = end - begin;
  void* const mapped = ::mmap(
      nullptr, size, PROT_READ, MAP_SHARED, file, static_cast<off_t>(begin));
  if (mapped == MAP_FAILED) return std::nullopt;
  std::vector<unsigned char> pages((size + page_bytes() - 1) / page_bytes());
  const bool is_known = ::mincore(mapped, size, pages.data()) == 0;
  ::munmap(mapped, size);
  if (!is_known) return std::nullopt;
  return static_cast<std::uint64_t>(
      std::ranges::count_if(pages, [](auto page) { return (page & 1U) != 0; }));
}

// Number of cached pages in a range; nothing where the system does not report
// it.
std::optional<std::uint64_t>
count_cached(int file, std::uint64_t offset, std::uint64_t size) {
  const auto cached = count_by_cachestat(file, offset, size);
  return cached ? cached : count_by_mincore(file, offset, offset + size);
}

}  // namespace

std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

bool is_mostly_cached(int file, std::uint64_t offset, std::uint64_t size) {
  if (size == 0) return true;
  const auto cached = count_cached(file, offset, size);
  return !cached || 2 * *cached * page_bytes() >= size;
}

bool is_completely_cached(int file, std::uint64_t offset, std::uint64_t size) {
  if (size == 0) return true;
  const auto cached = count_cached(file, offset, size);
  const std::uint64_t first = offset / page_bytes();
  const std::uint64_t last = (offset + size - 1) / page_bytes();
  return cached && *cached >= last - first + 1;
}

}  // namespace accelerate::detail
