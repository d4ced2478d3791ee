#pragma once

#include <optional>
#include <string>

namespace accelerate::detail {

/// Whether a regular expression matches all of `text`. Throws ConfigError if it
/// is invalid.
bool matches_expression(const std::string& text, const std::string& expression);

/// What the first group of `expression` matches at the beginning of `text`.
std::optional<std::string> group_in(
    const std::string& text,
    const std::string& expression);

}  // namespace accelerate::detail
