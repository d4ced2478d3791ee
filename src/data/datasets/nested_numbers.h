#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <nlohmann/json.hpp>

namespace accelerate::detail {

/// The shape of a number or of nested lists of numbers, judged by the first
/// element of each list. Nothing if lists are nested deeper than
/// kMostDimensions.
std::optional<std::vector<std::int64_t>> shape_of_lists(
    const nlohmann::json& value);

/// The numbers in row-major order. Nothing if a list's length differs from
/// `shape`, an element is not a number, or, for integers, not a 64-bit integer.
/// Booleans count as 0 and 1. `Number` is double or std::int64_t; for the
/// latter, `takes_unsigned` lets 2^63 and more wrap around.
template <class Number>
std::optional<std::vector<Number>> numbers_in_lists(
    const nlohmann::json& value,
    const std::vector<std::int64_t>& shape,
    bool takes_unsigned = false);

}  // namespace accelerate::detail
