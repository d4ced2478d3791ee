#include "format/exported/source_line.h"

#include <algorithm>
#include <optional>

#include "base/limits.h"
#include "base/text/text.h"

namespace accelerate::detail {

namespace {

// "path:12" of a line such as: File "path", line 12, in forward
std::optional<std::string> place_in(std::string_view line) {
  constexpr std::string_view kBegin = "File \"";
  constexpr std::string_view kMiddle = "\", line ";
  if (!line.starts_with(kBegin)) return std::nullopt;
  line.remove_prefix(kBegin.size());
  const std::size_t end = line.find(kMiddle);
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view number = line.substr(end + kMiddle.size());
  return format(
      "{}:{}", line.substr(0, end), number.substr(0, number.find(',')));
}

bool is_in_pytorch(std::string_view place) {
  return place.find("/torch/") != std::string_view::npos;
}

}  // namespace

std::string source_line(std::string_view stack_trace) {
  std::string last;
  std::string last_outside;
  std::string* called = nullptr;
  while (!stack_trace.empty()) {
    const std::size_t end =
        std::min(stack_trace.find('\n'), stack_trace.size());
    const std::string_view line = trim(stack_trace.substr(0, end));
    stack_trace.remove_prefix(std::min(end + 1, stack_trace.size()));
    if (const auto place = place_in(line)) {
      called = is_in_pytorch(*place) ? &last : &last_outside;
      *called = place->substr(0, kMostNameBytes);
    } else if (called != nullptr && !line.empty()) {
      // Source code follows its place; markers below it are left out.
      *called += format(": {}", line.substr(0, kMostNameBytes));
      called = nullptr;
    }
  }
  return last_outside.empty() ? last : last_outside;
}

}  // namespace accelerate::detail
