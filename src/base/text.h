#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace accelerate::detail {

/// Everything streamed one after another: the way messages are put together.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return std::move(out).str();
}

std::string join(
    std::span<const std::string> items,
    std::string_view separator);
std::vector<std::string> split(std::string_view text, char separator);
std::string_view trim(std::string_view text);
std::string to_lower(std::string_view text);
std::string to_upper(std::string_view text);

/// The whole of `text` as a number; nothing if any character is left over or
/// the value does not fit.
std::optional<long long> parse_int(std::string_view text);
std::optional<double> parse_double(std::string_view text);

/// Accelerate's truth words: y yes t true on 1, n no f false off 0, in any
/// case; nothing for any other word.
std::optional<bool> parse_bool(std::string_view text);

/// Number of single-character edits that turn one text into the other.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The known name that `name` was probably meant to be; nothing if none is
/// within a third of its length.
std::optional<std::string> nearest(
    std::string_view name,
    std::span<const std::string> known);

}  // namespace accelerate::detail
