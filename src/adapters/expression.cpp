#include "adapters/expression.h"

#include <regex>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

// libstdc++ matches recursively, so the stack limits the length of texts.
constexpr std::size_t kMostBytes = 1000;

std::regex compiled(const std::string& expression) {
  try {
    return std::regex(expression);
  } catch (const std::regex_error& error) {
    throw ConfigError(format(
        "[adapters] a pattern of modules must be a regular "
        "expression, but is \"{}\": {}",
        printable(expression),
        error.what()));
  }
}

}  // namespace

bool matches_expression(
    const std::string& text,
    const std::string& expression) {
  return text.size() <= kMostBytes &&
      std::regex_match(text, compiled(expression));
}

std::optional<std::string> group_in(
    const std::string& text,
    const std::string& expression) {
  std::smatch match;
  if (text.size() > kMostBytes ||
      !std::regex_search(
          text,
          match,
          compiled(expression),
          std::regex_constants::match_continuous)) {
    return std::nullopt;
  }
  return match[1].str();
}

}  // namespace accelerate::detail
