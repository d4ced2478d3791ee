#include "base/text/sizes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>

#include <accelerate/byte_size.h>
#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

struct Unit {
  std::string_view suffix;
  double bytes;
};

// Longest suffixes first: "MIB" before "MB".
constexpr std::array<Unit, 6> kUnits{{
    {"GIB", 1073741824.0},
    {"MIB", 1048576.0},
    {"KIB", 1024.0},
    {"GB", 1e9},
    {"MB", 1e6},
    {"KB", 1e3},
}};

[[noreturn]] void refuse(std::string_view text) {
  throw ConfigError(format(
      "[config] a size must be a number and one of KB, MB, GB, KiB, MiB and "
      "GiB, such as 10GB or 1.5GiB, but is \"{}\"",
      text));
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

std::int64_t parse_size(std::string_view text) {
  const std::string_view trimmed = trim(text);
  const std::string upper = to_upper(trimmed);
  const auto* const unit = std::ranges::find_if(
      kUnits,
      [&](const Unit& candidate) { return upper.ends_with(candidate.suffix); });
  if (unit == kUnits.end()) refuse(text);
  const bool is_bits = trimmed.back() == 'b' && unit->suffix.size() == 2;
  std::string number(
      trim(trimmed.substr(0, trimmed.size() - unit->suffix.size())));
  // Digits may be grouped: 1_000MB.
  for (std::size_t i = 1; i + 1 < number.size(); ++i) {
    if (number[i] == '_' && is_digit(number[i - 1]) &&
        is_digit(number[i + 1])) {
      number.erase(i, 1);
    }
  }
  const auto value = parse_double(number);
  if (!value || *value < 0 || !std::isfinite(*value)) refuse(text);
  const double bytes = *value * unit->bytes / (is_bits ? 8 : 1);
  if (bytes >= static_cast<double>(std::numeric_limits<std::int64_t>::max())) {
    refuse(text);
  }
  return static_cast<std::int64_t>(bytes);
}

std::string format_size(double bytes) {
  constexpr std::array<const char*, 6> kNames{
      "bytes", "KB", "MB", "GB", "TB", "PB"};
  std::size_t unit = 0;
  while (bytes >= 1024.0 && unit + 1 < kNames.size()) {
    bytes /= 1024.0;
    ++unit;
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f", bytes);
  std::string number = text.data();
  // "8.00" is written "8.0", and a number of bytes has no decimal point.
  if (number.ends_with('0')) number.pop_back();
  if (unit == 0 && number.ends_with(".0")) number.resize(number.size() - 2);
  return number + " " + kNames[unit];
}

double dtype_bytes(std::string_view dtype) {
  if (dtype.starts_with("torch.")) dtype.remove_prefix(6);
  if (dtype == "bool") return 1.0 / 8;
  if (dtype == "fp8") return 1;
  // The last number before a letter or the end is the number of bits:
  // "float8_e4m3fn", "int32", "complex64".
  std::size_t begin = 0;
  while (begin < dtype.size() && (dtype[begin] < '0' || dtype[begin] > '9')) {
    ++begin;
  }
  std::size_t end = begin;
  while (end < dtype.size() && dtype[end] >= '0' && dtype[end] <= '9') ++end;
  const auto bits = parse_int(dtype.substr(begin, end - begin));
  if (!bits || *bits <= 0) {
    throw ConfigError(format("[config] \"{}\" is not a dtype", dtype));
  }
  return static_cast<double>(*bits) / 8;
}

}  // namespace accelerate::detail

namespace accelerate {

ByteSize::ByteSize(std::int64_t bytes) : bytes_(bytes) {
  if (bytes < 0) {
    throw ConfigError(detail::format(
        "[base] a size must be at least 0 bytes, but is {}", bytes));
  }
}

ByteSize::ByteSize(const std::string& text)
    : bytes_(detail::parse_size(text)) {}

std::string convert_bytes(double bytes) { return detail::format_size(bytes); }

}  // namespace accelerate
