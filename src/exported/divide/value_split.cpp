#include "exported/divide/value_split.h"

#include <algorithm>
#include <cstddef>

namespace accelerate::detail {

namespace {

// A group of neighbouring dimensions, and its number of elements.
struct DimGroup {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::int64_t size = 1;

  // Adds a dimension; false if there is none, or the size is too large.
  bool grow(const std::vector<std::int64_t>& sizes) {
    return end < sizes.size() &&
        !__builtin_mul_overflow(size, sizes[end++], &size);
  }
  // The first dimension that has more than one index; `end` without one.
  [[nodiscard]] std::size_t leading(
      const std::vector<std::int64_t>& sizes) const {
    std::size_t dim = begin;
    while (dim < end && sizes[dim] == 1) ++dim;
    return dim;
  }
};

std::int64_t elements_behind(
    const std::vector<std::int64_t>& sizes,
    std::size_t dim,
    std::size_t end) {
  std::int64_t product = 1;
  while (++dim < end) product *= sizes[dim];
  return product;
}

}  // namespace

std::optional<ViewedDim> viewed_dim(
    std::int64_t dim,
    const std::vector<std::int64_t>& from,
    const std::vector<std::int64_t>& to) {
  const auto is_unknown = [](std::int64_t size) { return size < 1; };
  if (std::ranges::any_of(from, is_unknown) ||
      std::ranges::any_of(to, is_unknown))
    return std::nullopt;
  const auto wanted = static_cast<std::size_t>(dim);
  DimGroup before, after;
  while (before.end < from.size() || after.end < to.size()) {
    before = {before.end, before.end};
    after = {after.end, after.end};
    if (before.end < from.size() && !before.grow(from)) return std::nullopt;
    if (after.end < to.size() && !after.grow(to)) return std::nullopt;
    while (before.size != after.size) {
      const bool has_grown =
          before.size < after.size ? before.grow(from) : after.grow(to);
      if (!has_grown) return std::nullopt;
    }
    if (wanted < before.begin || wanted >= before.end) continue;
    const std::size_t lead = after.leading(to);
    if (before.leading(from) != wanted || lead == after.end)
      return std::nullopt;
    return ViewedDim{
        static_cast<std::int64_t>(lead),
        elements_behind(from, wanted, before.end),
        elements_behind(to, lead, after.end)};
  }
  return std::nullopt;
}

std::optional<std::vector<std::int64_t>> rescaled(
    const std::vector<std::int64_t>& begins,
    std::int64_t from,
    std::int64_t to) {
  std::vector<std::int64_t> scaled;
  for (const std::int64_t begin : begins) {
    std::int64_t elements = 0;
    if (__builtin_mul_overflow(begin, from, &elements) || elements % to != 0)
      return std::nullopt;
    scaled.push_back(elements / to);
  }
  return scaled;
}

}  // namespace accelerate::detail
