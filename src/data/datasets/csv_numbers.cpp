#include "data/datasets/csv_numbers.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <string>
#include <system_error>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// The text without its sign; nothing if a second sign follows.
std::optional<std::string_view> without_sign(std::string_view text) {
  if (text.starts_with('+') || text.starts_with('-')) text.remove_prefix(1);
  if (text.starts_with('+') || text.starts_with('-')) return std::nullopt;
  return text;
}

// Whether a decimal number that no double holds is too large, and not too
// small: its first digit other than 0 stands before the point, once the
// exponent has moved it.
bool is_too_large(std::string_view digits) {
  const std::size_t exponent_at = digits.find_first_of("eE");
  const std::string_view mantissa = digits.substr(0, exponent_at);
  const std::size_t point = std::min(mantissa.find('.'), mantissa.size());
  const std::size_t first = mantissa.find_first_of("123456789");
  long long exponent = 0;
  if (exponent_at != std::string_view::npos) {
    std::string_view text = digits.substr(exponent_at + 1);
    const bool is_negative = text.starts_with('-');
    if (text.starts_with('+')) text.remove_prefix(1);
    const auto [end, code] =
        std::from_chars(text.data(), text.data() + text.size(), exponent);
    if (code == std::errc::result_out_of_range) return !is_negative;
  }
  return static_cast<long long>(point) - static_cast<long long>(first) +
      exponent >
      0;
}

}  // namespace

std::optional<double> decimal_of(std::string_view text) {
  text = trim(text);
  const auto digits = without_sign(text);
  if (!digits || digits->empty()) return std::nullopt;
  const bool is_negative = text.front() == '-';
  const auto signed_value = [&](double value) {
    return is_negative ? -value : value;
  };
  if (!is_digit(digits->front()) && digits->front() != '.') {
    const std::string word = to_lower(*digits);
    if (word == "nan") return std::numeric_limits<double>::quiet_NaN();
    if (word == "inf" || word == "infinity")
      return signed_value(std::numeric_limits<double>::infinity());
    return std::nullopt;
  }
  double value = 0;
  const char* const end = digits->data() + digits->size();
  const auto [stop, code] = std::from_chars(digits->data(), end, value);
  if (stop != end || code == std::errc::invalid_argument) return std::nullopt;
  if (code == std::errc::result_out_of_range) {
    value = is_too_large(*digits) ? std::numeric_limits<double>::infinity() : 0;
  }
  return signed_value(value);
}

std::optional<long long> integer_of(std::string_view text) {
  text = trim(text);
  if (!without_sign(text)) return std::nullopt;
  if (text.starts_with('+')) text.remove_prefix(1);
  return parse_int(text);
}

bool is_missing(std::string_view field) {
  constexpr std::array<std::string_view, 19> kMissing{
      "",
      "#N/A",
      "#N/A N/A",
      "#NA",
      "-1.#IND",
      "-1.#QNAN",
      "-NaN",
      "-nan",
      "1.#IND",
      "1.#QNAN",
      "<NA>",
      "N/A",
      "NA",
      "NULL",
      "NaN",
      "None",
      "n/a",
      "nan",
      "null"};
  return std::ranges::find(kMissing, field) != kMissing.end();
}

}  // namespace accelerate::detail
