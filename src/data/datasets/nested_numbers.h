#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include <nlohmann/json.hpp>

namespace accelerate::detail {

/// The shape of a number or of nested lists of numbers, judged by the first
/// element of each list. Nothing if lists are nested deeper than
/// kMostDimensions.
std::optional<std::vector<std::int64_t>> shape_of_lists(
    const nlohmann::json& value);

/// The numbers in row-major order; booleans count as 0 and 1. Nothing if a
/// list's length differs from `shape`, or an element is not a number.
std::optional<std::vector<double>> numbers_in_lists(
    const nlohmann::json& value,
    const std::vector<std::int64_t>& shape);

struct IntegerRange {
  std::int64_t least = std::numeric_limits<std::int64_t>::min();
  /// Not negative.
  std::uint64_t most = std::numeric_limits<std::int64_t>::max();
};
/// The whole numbers of such lists, all within `range`; those above 2^63 wrap
/// around.
std::optional<std::vector<std::int64_t>> integers_in_lists(
    const nlohmann::json& value,
    const std::vector<std::int64_t>& shape,
    const IntegerRange& range = {});

}  // namespace accelerate::detail
