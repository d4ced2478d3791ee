#include "base/progress/meter.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

constexpr std::size_t kBarColumns = 10;  // without a limit
constexpr double kMostSeconds = 1e9;

std::string printed(const char* pattern, double number) {
  std::array<char, 64> text{};
  const int size = std::snprintf(text.data(), text.size(), pattern, number);
  return {text.data(), static_cast<std::size_t>(std::max(size, 0))};
}

std::string count_text(const Meter& meter, std::int64_t count) {
  if (!meter.unit_scale) return std::to_string(count);
  return scaled_text(static_cast<double>(count), meter.unit_divisor);
}

std::string rate_text(const Meter& meter) {
  if (!meter.rate || !std::isfinite(*meter.rate) || *meter.rate <= 0)
    return "?" + meter.unit + "/s";
  const double rate = *meter.rate;
  if (rate < 1) return printed("%5.2f", 1 / rate) + "s/" + meter.unit;
  return (meter.unit_scale ? scaled_text(rate, meter.unit_divisor)
                           : printed("%5.2f", rate)) +
      meter.unit + "/s";
}

std::string remaining_text(const Meter& meter) {
  if (!meter.rate || *meter.rate <= 0) return "?";
  const auto left =
      std::max<double>(0, static_cast<double>(*meter.total - meter.count));
  return clock_text(left / *meter.rate);
}

// The bar in eighths of a column, or in ASCII in tenths, written as digits.
std::string bar_text(double share, std::size_t columns, bool ascii) {
  static constexpr std::array<std::string_view, 8> kEighths{
      "", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const std::size_t parts = ascii ? 10 : 8;
  const auto filled =
      static_cast<std::size_t>(share * static_cast<double>(columns * parts));
  const std::size_t full = filled / parts;
  const std::size_t rest = filled % parts;
  std::string bar;
  for (std::size_t i = 0; i < full; ++i) bar += ascii ? "#" : "█";
  std::size_t used = full;
  if (rest > 0 && full < columns) {
    if (ascii) {
      bar += static_cast<char>('0' + rest);
    } else {
      bar += kEighths[rest];
    }
    ++used;
  }
  return bar + std::string(columns - used, ' ');
}

std::string first_columns(const std::string& text, std::size_t columns) {
  std::size_t seen = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool begins = (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80;
    if (begins && seen++ == columns) return text.substr(0, i);
  }
  return text;
}

}  // namespace

std::string clock_text(double seconds) {
  if (!(seconds >= 0)) return "?";
  const auto whole = static_cast<std::int64_t>(std::min(seconds, kMostSeconds));
  std::array<char, 64> text{};
  const std::int64_t hours = whole / 3600;
  const auto minutes = static_cast<int>(whole / 60 % 60);
  const auto rest = static_cast<int>(whole % 60);
  if (hours > 0) {
    std::snprintf(
        text.data(),
        text.size(),
        "%lld:%02d:%02d",
        static_cast<long long>(hours),
        minutes,
        rest);
  } else {
    std::snprintf(text.data(), text.size(), "%02d:%02d", minutes, rest);
  }
  return text.data();
}

std::string scaled_text(double number, double divisor) {
  static constexpr std::array<const char*, 9> kPrefixes{
      "", "k", "M", "G", "T", "P", "E", "Z", "Y"};
  for (const char* prefix : kPrefixes) {
    const double size = std::abs(number);
    if (size < 999.5) {
      const char* pattern = size < 9.995 ? "%.2f"
          : size < 99.95                 ? "%.1f"
                                         : "%.0f";
      return printed(pattern, number) + prefix;
    }
    number /= divisor;
  }
  return printed("%.3g", number) + "Y";
}

std::string meter_line(const Meter& meter, const MeterStyle& style) {
  std::string left = printable(meter.description, 1000);
  if (!left.empty()) left += ": ";
  std::string facts = rate_text(meter);
  const std::string postfix = printable(meter.postfix, 1000);
  if (!postfix.empty()) facts += ", " + postfix;
  const std::string elapsed = clock_text(meter.elapsed_seconds);
  const bool has_total =
      meter.total && *meter.total > 0 && meter.count <= *meter.total;
  std::string line;
  if (!has_total) {
    line = left + count_text(meter, meter.count) + meter.unit + " [" + elapsed +
        ", " + facts + "]";
  } else {
    const double share =
        static_cast<double>(meter.count) / static_cast<double>(*meter.total);
    const std::string right = " " + count_text(meter, meter.count) + "/" +
        count_text(meter, *meter.total) + " [" + elapsed + "<" +
        remaining_text(meter) + ", " + facts + "]";
    left += printed("%3.0f", std::floor(share * 100)) + "%";
    if (style.has_bar) {
      std::size_t columns = kBarColumns;
      if (style.columns > 0) {
        const std::size_t taken =
            num_columns_of(left) + num_columns_of(right) + 2;
        const auto most = static_cast<std::size_t>(style.columns);
        columns = most > taken ? most - taken : 0;
      }
      left += "|";
      if (columns > 0) left += bar_text(share, columns, style.ascii) + "|";
    }
    line = left + right;
  }
  return style.columns > 0
      ? first_columns(line, static_cast<std::size_t>(style.columns))
      : line;
}

}  // namespace accelerate::detail
