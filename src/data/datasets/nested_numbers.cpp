#include "data/datasets/nested_numbers.h"

#include <cstddef>

#include "base/limits.h"

namespace accelerate::detail {

namespace {

using nlohmann::json;

// Calls `append(item)` with every element that is not a list. Returns false if
// that does, or for a list of the wrong length. Recurses at most once per
// dimension.
template <class Append>
bool append_all(
    const json& value,
    const std::vector<std::int64_t>& shape,
    std::size_t depth,
    const Append& append) {
  if (depth == shape.size()) return append(value);
  if (!value.is_array() ||
      static_cast<std::int64_t>(value.size()) != shape[depth])
    return false;
  for (const json& item : value) {
    if (!append_all(item, shape, depth + 1, append)) return false;
  }
  return true;
}

bool is_within(const json& value, const IntegerRange& range) {
  return value.is_number_unsigned()
      ? value.get<std::uint64_t>() <= range.most
      : value.is_number_integer() && value.get<std::int64_t>() >= range.least &&
          (value.get<std::int64_t>() < 0 ||
           static_cast<std::uint64_t>(value.get<std::int64_t>()) <= range.most);
}

}  // namespace

std::optional<std::vector<std::int64_t>> shape_of_lists(const json& value) {
  std::vector<std::int64_t> shape;
  for (const json* at = &value; at->is_array(); at = &at->front()) {
    if (shape.size() == kMostDimensions) return std::nullopt;
    shape.push_back(static_cast<std::int64_t>(at->size()));
    if (at->empty()) break;
  }
  return shape;
}

std::optional<std::vector<double>> numbers_in_lists(
    const json& value,
    const std::vector<std::int64_t>& shape) {
  std::vector<double> numbers;
  const bool are_numbers = append_all(value, shape, 0, [&](const json& item) {
    if (!item.is_number() && !item.is_boolean()) return false;
    numbers.push_back(
        item.is_boolean() ? static_cast<double>(item.get<bool>())
                          : item.get<double>());
    return true;
  });
  if (!are_numbers) return std::nullopt;
  return numbers;
}

std::optional<std::vector<std::int64_t>> integers_in_lists(
    const json& value,
    const std::vector<std::int64_t>& shape,
    const IntegerRange& range) {
  std::vector<std::int64_t> integers;
  const bool are_integers = append_all(value, shape, 0, [&](const json& item) {
    if (!item.is_boolean() && !is_within(item, range)) return false;
    integers.push_back(
        item.is_boolean() ? static_cast<std::int64_t>(item.get<bool>())
                          : item.get<std::int64_t>());
    return true;
  });
  if (!are_integers) return std::nullopt;
  return integers;
}

}  // namespace accelerate::detail
