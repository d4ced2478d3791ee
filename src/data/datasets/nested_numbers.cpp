#include "data/datasets/nested_numbers.h"

#include <cstddef>
#include <limits>
#include <type_traits>

#include "base/limits.h"

namespace accelerate::detail {

namespace {

using nlohmann::json;

template <class Number>
bool is_number_of(const json& value, bool takes_unsigned) {
  if constexpr (std::is_floating_point_v<Number>) {
    return value.is_number();
  } else {
    if (!value.is_number_unsigned()) return value.is_number_integer();
    return takes_unsigned ||
        value.get<std::uint64_t>() <=
        std::uint64_t{std::numeric_limits<std::int64_t>::max()};
  }
}

// Returns false for a value that is not a number, or a list of the wrong
// length. Recurses at most once per dimension.
template <class Number>
bool append_numbers(
    const json& value,
    const std::vector<std::int64_t>& shape,
    std::size_t depth,
    bool takes_unsigned,
    std::vector<Number>& out) {
  if (depth == shape.size()) {
    if (value.is_boolean()) {
      out.push_back(static_cast<Number>(value.get<bool>()));
      return true;
    }
    if (!is_number_of<Number>(value, takes_unsigned)) return false;
    out.push_back(value.get<Number>());
    return true;
  }
  if (!value.is_array() ||
      static_cast<std::int64_t>(value.size()) != shape[depth])
    return false;
  for (const json& item : value) {
    if (!append_numbers(item, shape, depth + 1, takes_unsigned, out))
      return false;
  }
  return true;
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

template <class Number>
std::optional<std::vector<Number>> numbers_in_lists(
    const json& value,
    const std::vector<std::int64_t>& shape,
    bool takes_unsigned) {
  std::vector<Number> numbers;
  if (!append_numbers(value, shape, 0, takes_unsigned, numbers))
    return std::nullopt;
  return numbers;
}

template std::optional<std::vector<double>>
numbers_in_lists(const json&, const std::vector<std::int64_t>&, bool);
template std::optional<std::vector<std::int64_t>>
numbers_in_lists(const json&, const std::vector<std::int64_t>&, bool);

}  // namespace accelerate::detail
