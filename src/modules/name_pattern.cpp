#include "modules/name_pattern.h"

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

bool matches_part(std::string_view pattern, std::string_view part) {
  if (pattern.empty()) return part.empty();
  if (pattern.front() == '*') {
    for (std::size_t skipped = 0; skipped <= part.size(); ++skipped) {
      if (matches_part(pattern.substr(1), part.substr(skipped))) return true;
    }
    return false;
  }
  if (part.empty()) return false;
  return (pattern.front() == '?' || pattern.front() == part.front()) &&
      matches_part(pattern.substr(1), part.substr(1));
}

bool matches_parts(
    std::span<const std::string> pattern,
    std::span<const std::string> name) {
  if (pattern.empty()) return name.empty();
  if (pattern.front() == "**") {
    for (std::size_t skipped = 0; skipped <= name.size(); ++skipped) {
      if (matches_parts(pattern.subspan(1), name.subspan(skipped))) return true;
    }
    return false;
  }
  return !name.empty() && matches_part(pattern.front(), name.front()) &&
      matches_parts(pattern.subspan(1), name.subspan(1));
}

}  // namespace

bool matches_name(std::string_view pattern, std::string_view name) {
  const std::vector<std::string> parts_of_pattern = split(pattern, '.');
  const std::vector<std::string> parts_of_name = split(name, '.');
  return matches_parts(parts_of_pattern, parts_of_name);
}

}  // namespace accelerate::detail
