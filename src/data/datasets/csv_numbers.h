#pragma once

#include <optional>
#include <string_view>

namespace accelerate::detail {

/// A decimal number as Python's float() reads it, without underscores: spaces
/// around it, a sign, "inf", "infinity" and "nan" in any case. Too large a
/// number is infinite, too small a one is 0. Nothing for other text.
std::optional<double> decimal_of(std::string_view text);

/// A whole number as Python's int() reads it, without underscores. Nothing for
/// other text, and for numbers beyond 64 bits.
std::optional<long long> integer_of(std::string_view text);

/// Whether pandas.read_csv() reads the field as a missing value: nothing at
/// all, NA, N/A, NaN, null, None and the like.
bool is_missing(std::string_view field);

}  // namespace accelerate::detail
