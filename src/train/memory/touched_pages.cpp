#include "train/memory/touched_pages.h"

#include <algorithm>
#include <cstddef>

namespace accelerate::detail {

namespace {

// Number of the first page that begins at `place` or later.
std::size_t page_from(std::int64_t place) {
  return static_cast<std::size_t>((place + kPageBytes - 1) / kPageBytes);
}

}  // namespace

void TouchedPages::touch(const MemoryRange& range, bool counts) {
  const std::size_t end = page_from(range.second);
  if (pages_.size() < end) pages_.resize(end, Page::untouched);
  for (auto page = static_cast<std::size_t>(range.first / kPageBytes);
       page < end;
       ++page) {
    if (pages_[page] != Page::untouched) continue;
    pages_[page] = counts ? Page::touched : Page::uncounted;
    num_touched_ += counts ? 1 : 0;
  }
}

void TouchedPages::drop_within(const MemoryRange& range) {
  const auto end = static_cast<std::size_t>(range.second / kPageBytes);
  drop(page_from(range.first), std::min(end, pages_.size()));
}

void TouchedPages::drop_from(std::int64_t begin) {
  const std::size_t first = page_from(begin);
  if (first >= pages_.size()) return;
  drop(first, pages_.size());
  pages_.resize(first);
}

void TouchedPages::drop(std::size_t first, std::size_t end) {
  for (std::size_t page = first; page < end; ++page) {
    num_touched_ -= pages_[page] == Page::touched ? 1 : 0;
    pages_[page] = Page::untouched;
  }
}

}  // namespace accelerate::detail
