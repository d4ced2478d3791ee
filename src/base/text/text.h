#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <accelerate/detail/message_text.h>

namespace accelerate::detail {

std::string join(
    std::span<const std::string> items,
    std::string_view separator);
std::vector<std::string> split(std::string_view text, char separator);
std::string_view trim(std::string_view text);
std::string to_lower(std::string_view text);
std::string to_upper(std::string_view text);

/// Whether all of `text` is valid UTF-8.
bool is_utf8(std::string_view text);

/// Longer names are shortened in messages.
inline constexpr std::size_t kMostShownBytes = 200;

/// A name from a file or a command line as any terminal can show it on one
/// line: control characters, line breaks, marks that turn the direction of
/// writing, and bytes that are not UTF-8 become escapes (\n, \x1b, \u202e),
/// and what is longer than `most_bytes` loses its middle. The result is
/// printable, so a message may be built from messages.
std::string printable(
    std::string_view text,
    std::size_t most_bytes = kMostShownBytes);
/// Like printable(), for a message of several lines: keeps tabs, line breaks
/// and length.
std::string printable_lines(std::string_view text);

/// Number of columns that UTF-8 text takes, as if no character were wide.
std::size_t num_columns_of(std::string_view text);

/// Parses all of `text` as a number; nothing if characters are left over or the
/// value does not fit.
std::optional<long long> parse_int(std::string_view text);
std::optional<double> parse_double(std::string_view text);

/// A boolean as Accelerate spells it: y yes t true on 1, n no f false off 0, in
/// any case; nothing for any other string.
std::optional<bool> parse_bool(std::string_view text);

/// The known name closest to `name`; nothing if none is within a third of its
/// length.
std::optional<std::string> nearest(
    std::string_view name,
    std::span<const std::string> known);

}  // namespace accelerate::detail
