#include "train/plan/heap_holes.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <utility>

#ifdef __GLIBC__
#include <malloc.h>
#include <unistd.h>
#endif

#include "train/plan/heap_model.h"

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

// Sizes of the heap ranges that parameters occupy; adjacent ones are merged.
std::vector<std::int64_t> parameters_in_heap(const ParameterTable& table) {
  // Modules and other small objects lie between a model's parameters.
  constexpr std::uintptr_t kBeside = kPageBytes;
  const auto end_of_heap = reinterpret_cast<std::uintptr_t>(::sbrk(0));
  std::vector<std::pair<std::uintptr_t, std::uintptr_t>> blocks;
  for (const Parameter& row : table.rows()) {
    if (!row.tensor.has_storage()) continue;
    const auto begin =
        reinterpret_cast<std::uintptr_t>(row.tensor.storage().data());
    if (begin != 0 && begin < end_of_heap)
      blocks.emplace_back(begin, begin + row.tensor.storage().nbytes());
  }
  std::sort(blocks.begin(), blocks.end());
  std::vector<std::int64_t> sizes;
  for (std::size_t i = 0; i < blocks.size();) {
    const std::uintptr_t begin = blocks[i].first;
    std::uintptr_t end = blocks[i].second;
    for (++i; i < blocks.size() && blocks[i].first <= end + kBeside; ++i)
      end = std::max(end, blocks[i].second);
    sizes.push_back(static_cast<std::int64_t>(end - begin));
  }
  return sizes;
}
#endif

}  // namespace

std::vector<std::int64_t> heap_holes(
    [[maybe_unused]] const ParameterTable& table) {
  std::vector<std::int64_t> holes;
#ifdef __GLIBC__
  holes = free_ranges();
  const auto filled = parameters_in_heap(table);
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
