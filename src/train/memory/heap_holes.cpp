#include "train/memory/heap_holes.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <utility>

#ifdef __GLIBC__
#include <malloc.h>
#include <unistd.h>
#endif

#include "train/memory/heap_model.h"

namespace accelerate::detail {

namespace {

// The number in `name="number"`, or 0.
std::int64_t attribute(std::string_view element, std::string_view name) {
  const std::size_t at = element.find(name);
  std::int64_t number = 0;
  if (at == std::string_view::npos) return number;
  const char* const begin = element.data() + at + name.size();
  std::from_chars(begin, element.data() + element.size(), number);
  return number;
}

// Clears the flags that glibc keeps in the lowest bits of a size.
std::int64_t without_flags(std::int64_t size) { return size & ~15LL; }

#ifdef __GLIBC__
std::vector<std::int64_t> free_ranges() {
  char* text = nullptr;
  std::size_t length = 0;
  std::FILE* const file = ::open_memstream(&text, &length);
  if (file == nullptr) return {};
  ::malloc_info(0, file);
  std::fclose(file);
  auto ranges = read_free_ranges({text, length});
  std::free(text);
  return ranges;
}

// Sizes of the parts of the heap that these ranges of addresses occupy;
// adjacent ones are merged.
std::vector<std::int64_t> sizes_in_heap(std::vector<MemoryRange> ranges) {
  // Modules and other small objects lie between a model's parameters.
  constexpr std::int64_t kBeside = kPageBytes;
  const auto end_of_heap = reinterpret_cast<std::intptr_t>(::sbrk(0));
  std::erase_if(ranges, [&](const MemoryRange& range) {
    return range.first == 0 || range.first >= end_of_heap;
  });
  std::sort(ranges.begin(), ranges.end());
  std::vector<std::int64_t> sizes;
  for (std::size_t i = 0; i < ranges.size();) {
    auto [begin, end] = ranges[i];
    for (++i; i < ranges.size() && ranges[i].first <= end + kBeside; ++i)
      end = std::max(end, ranges[i].second);
    sizes.push_back(end - begin);
  }
  return sizes;
}
#endif

}  // namespace

std::vector<std::int64_t> heap_holes(
    [[maybe_unused]] const ParameterTable& table,
    [[maybe_unused]] std::vector<MemoryRange> others) {
  std::vector<std::int64_t> holes;
#ifdef __GLIBC__
  holes = free_ranges();
  for (const Parameter& row : table.rows()) {
    if (!row.tensor.has_storage()) continue;
    const at::Storage& storage = row.tensor.storage();
    const auto begin = reinterpret_cast<std::intptr_t>(storage.data());
    others.emplace_back(
        begin, begin + static_cast<std::intptr_t>(storage.nbytes()));
  }
  const auto filled = sizes_in_heap(std::move(others));
  holes.insert(holes.end(), filled.begin(), filled.end());
#endif
  return holes;
}

std::vector<std::int64_t> read_free_ranges(std::string_view malloc_info) {
  std::vector<std::int64_t> ranges;
  const std::string_view arena =
      malloc_info.substr(0, malloc_info.find("</sizes>"));
  for (std::size_t at = arena.find(" from="); at != std::string_view::npos;
       at = arena.find(" from=", at + 1)) {
    const std::string_view element = arena.substr(at, arena.find('>', at) - at);
    const std::int64_t smallest = without_flags(attribute(element, "from=\""));
    const std::int64_t largest = without_flags(attribute(element, "to=\""));
    const std::int64_t total = attribute(element, "total=\"");
    const std::int64_t count = attribute(element, "count=\"");
    if (largest < kPageBytes || count < 1) continue;
    const std::int64_t above = std::max<std::int64_t>(largest - smallest, 1);
    const std::int64_t num_largest = std::clamp<std::int64_t>(
        (total - count * smallest + above / 2) / above, 1, count);
    ranges.insert(ranges.end(), static_cast<std::size_t>(num_largest), largest);
    ranges.insert(
        ranges.end(), static_cast<std::size_t>(count - num_largest), smallest);
  }
  std::erase_if(ranges, [](std::int64_t size) { return size < kPageBytes; });
  return ranges;
}

}  // namespace accelerate::detail
