#include "data/datasets/json_constants.h"

#include <array>
#include <limits>
#include <string>
#include <utility>

#include "data/datasets/text_file.h"

namespace accelerate::detail {

namespace {

using nlohmann::json;

constexpr std::array<std::pair<std::string_view, double>, 3> kConstants{
    {{"NaN", std::numeric_limits<double>::quiet_NaN()},
     {"Infinity", std::numeric_limits<double>::infinity()},
     {"-Infinity", -std::numeric_limits<double>::infinity()}}};

// Begins a string that stands for a constant. Only the escape \u0001 puts this
// character into a string of JSON.
constexpr char kMark = '\x01';
constexpr std::string_view kEscapedMark = "\\u0001";

// The text with constants replaced by marked strings; unchanged if there are
// none.
std::string with_marked_constants(std::string_view text) {
  std::string marked;
  bool is_in_string = false;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t begin = i;
    if (is_in_string) {
      i += text[i] == '\\' ? 2 : 1;
      is_in_string = text[begin] != '"';
    } else {
      is_in_string = text[i++] == '"';
      for (const auto& [name, value] : kConstants) {
        if (!text.substr(begin).starts_with(name)) continue;
        marked.append("\"").append(kEscapedMark).append(name).append("\"");
        i = begin + name.size();
        break;
      }
      if (i > begin + 1) continue;
    }
    marked += text.substr(begin, i - begin);
  }
  return marked;
}

// Replaces marked strings by their numbers. Returns false if one is a key.
bool restore(json& value) {
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    for (const auto& [name, number] : kConstants) {
      if (text.starts_with(kMark) && text.substr(1) == name) {
        value = number;
        break;
      }
    }
  } else if (value.is_object()) {
    for (auto& [key, item] : value.items()) {
      if (key.starts_with(kMark) || !restore(item)) return false;
    }
  } else if (value.is_array()) {
    for (json& item : value) {
      if (!restore(item)) return false;
    }
  }
  return true;
}

}  // namespace

ParsedJson parse_json_of_python(std::string_view text) {
  if (text.starts_with(kByteOrderMark))
    return {nullptr, "line 1, column 1: syntax error: a byte order mark"};
  ParsedJson parsed = parse_json(text);
  if (parsed.complaint.empty() ||
      text.find(kEscapedMark) != std::string_view::npos)
    return parsed;
  std::string marked = with_marked_constants(text);
  if (marked == text) return parsed;
  ParsedJson with_constants = parse_json(marked);
  const bool is_read =
      with_constants.complaint.empty() && restore(with_constants.value);
  return is_read ? std::move(with_constants) : std::move(parsed);
}

}  // namespace accelerate::detail
