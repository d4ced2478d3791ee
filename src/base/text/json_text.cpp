#include "base/text/json_text.h"

#include <algorithm>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

// Number of lists and objects around the innermost value.
std::size_t depth_of(std::string_view text) {
  std::size_t depth = 0;
  std::size_t deepest = 0;
  bool is_in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (is_in_string) {
      if (c == '\\') ++i;
      is_in_string = c != '"';
    } else if (c == '"') {
      is_in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      depth -= depth > 0 ? 1 : 0;
    }
  }
  return deepest;
}

}  // namespace

std::string json_complaint(const nlohmann::json::exception& error) {
  // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
  std::string_view text = error.what();
  const std::size_t code = text.find("] ");
  if (text.starts_with("[json.exception.") && code != std::string_view::npos) {
    text.remove_prefix(code + 2);
  }
  for (const std::string_view prefix : {"parse error at ", "parse error: "}) {
    if (text.starts_with(prefix)) text.remove_prefix(prefix.size());
  }
  return printable(text, 2 * kMostShownBytes);
}

ParsedJson parse_json(std::string_view text) {
  if (const std::size_t depth = depth_of(text); depth > kMostJsonDepth) {
    return {
        nullptr,
        format(
            "lists and objects are nested {} deep, but only {} levels are read",
            depth,
            kMostJsonDepth)};
  }
  try {
    return {nlohmann::json::parse(text), ""};
  } catch (const nlohmann::json::exception& error) {
    return {nullptr, json_complaint(error)};
  }
}

}  // namespace accelerate::detail
