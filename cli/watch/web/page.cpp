#include "cli/watch/web/page.h"

#include <utility>

namespace accelerate::cli {

namespace {

// JSON for use inside <script>, which only "</script" or "<!--" could end.
std::string without_tags(std::string_view json) {
  std::string text;
  text.reserve(json.size());
  for (const char c : json) {
    if (c == '<') {
      text += "\\u003c";
    } else {
      text += c;
    }
  }
  return text;
}

}  // namespace

std::string make_page(std::string_view data) {
  const std::string json = without_tags(data);
  const std::pair<std::string_view, std::string_view> parts[] = {
      {"@STYLE@", page_files::kStyle},
      {"@CHART@", page_files::kChart},
      {"@DATA@", json},
      {"@SCRIPT@", page_files::kScript}};
  std::string page;
  std::string_view rest = page_files::kIndex;
  for (const auto& [mark, content] : parts) {
    const std::size_t place = rest.find(mark);
    page += rest.substr(0, place);
    page += content;
    rest.remove_prefix(place + mark.size());
  }
  page += rest;
  return page;
}

}  // namespace accelerate::cli
