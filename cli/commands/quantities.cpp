#include "cli/commands/quantities.h"

#include <cmath>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <utility>

#include <accelerate/error.h>

#include "base/text/sizes.h"
#include "base/text/text.h"

namespace accelerate::cli {

namespace {

using Units = std::initializer_list<std::pair<std::string_view, double>>;

[[noreturn]] void refuse(
    const std::string& flag,
    const std::string& text,
    std::string_view wanted) {
  throw ConfigError(detail::format(
      "[cli] {} is \"{}\"; give {}", flag, detail::printable(text), wanted));
}

// A number above 0 followed by one of the units, in any case.
std::optional<double> parse(const std::string& text, Units units) {
  const std::string lower = detail::to_lower(detail::trim(text));
  for (const auto& [unit, factor] : units) {
    if (!lower.ends_with(unit)) continue;
    const std::string_view digits = detail::trim(
        std::string_view(lower).substr(0, lower.size() - unit.size()));
    const std::optional<double> number = detail::parse_double(digits);
    if (number && std::isfinite(*number) && *number > 0)
      return *number * factor;
  }
  return std::nullopt;
}

}  // namespace

double parse_flops(const std::string& flag, const std::string& text) {
  const auto flops = parse(
      text,
      {{"gf", 1e9},
       {"tf", 1e12},
       {"pf", 1e15},
       {"gflops", 1e9},
       {"tflops", 1e12},
       {"pflops", 1e15},
       {"", 1}});
  if (!flops) refuse(flag, text, "operations per second, such as 400TF");
  return *flops;
}

double parse_rate(const std::string& flag, const std::string& text) {
  std::string_view size = detail::trim(text);
  if (size.ends_with("/s")) size.remove_suffix(2);
  try {
    const std::int64_t bytes = detail::parse_size(size);
    if (bytes > 0) return static_cast<double>(bytes);
  } catch (const ConfigError&) {
    // Reported below, with the flag.
  }
  refuse(flag, text, "a speed, such as 400Gb/s (bits) or 50GB/s (bytes)");
}

double parse_seconds(const std::string& flag, const std::string& text) {
  const auto seconds = parse(
      text, {{"us", 1e-6}, {"ms", 1e-3}, {"ns", 1e-9}, {"s", 1}, {"", 1}});
  if (!seconds) refuse(flag, text, "a time, such as 8us");
  return *seconds;
}

std::int64_t parse_count(const std::string& flag, const std::string& text) {
  const auto count = parse(
      text,
      {{"k", 1024.0},
       {"m", 1024.0 * 1024},
       {"g", 1024.0 * 1024 * 1024},
       {"", 1}});
  if (!count || *count < 1 || *count > 0x1p52)
    refuse(flag, text, "a number of at least 1, such as 4M (4 x 1024 x 1024)");
  return std::llround(*count);
}

}  // namespace accelerate::cli
