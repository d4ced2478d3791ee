#include "base/sizes.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <limits>

#include <accelerate/error.h>

#include "base/text.h"

namespace accelerate::detail {

namespace {

struct Unit {
  std::string_view suffix;
  double bytes;
};

// Longest suffixes first: "MIB" before "MB".
constexpr std::array<Unit, 9> kUnits{{
    {"TIB", 1099511627776.0},
    {"GIB", 1073741824.0},
    {"MIB", 1048576.0},
    {"KIB", 1024.0},
    {"TB", 1e12},
    {"GB", 1e9},
    {"MB", 1e6},
    {"KB", 1e3},
    {"B", 1.0},
}};

[[noreturn]] void refuse(std::string_view text) {
  throw ConfigError(concat(
      "[size] \"",
      text,
      "\" is not a size; write a number with a unit, such as 10GB or 1.5GiB"));
}

}  // namespace

std::int64_t parse_size(std::string_view text) {
  const std::string_view whole = trim(text);
  std::string_view number = whole;
  double unit = 1.0;
  const std::string upper = to_upper(whole);
  for (const Unit& candidate : kUnits) {
    if (upper.ends_with(candidate.suffix)) {
      number.remove_suffix(candidate.suffix.size());
      unit = candidate.bytes;
      const bool bits = whole.back() == 'b' && candidate.suffix.size() == 2;
      if (bits) unit /= 8;
      break;
    }
  }
  const auto value = parse_double(trim(number));
  if (!value || *value < 0 || !std::isfinite(*value)) refuse(text);
  const double bytes = *value * unit;
  if (bytes >= static_cast<double>(std::numeric_limits<std::int64_t>::max())) {
    refuse(text);
  }
  return static_cast<std::int64_t>(bytes);
}

std::string format_size(std::int64_t bytes) {
  constexpr std::array<const char*, 5> kNames{"bytes", "KB", "MB", "GB", "TB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024.0 && unit + 1 < kNames.size()) {
    value /= 1024.0;
    ++unit;
  }
  std::array<char, 32> text{};
  std::snprintf(
      text.data(),
      text.size(),
      unit == 0 ? "%.0f %s" : "%.2f %s",
      value,
      kNames[unit]);
  return text.data();
}

}  // namespace accelerate::detail
