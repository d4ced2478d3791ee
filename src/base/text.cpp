#include "base/text.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <numeric>

namespace accelerate::detail {

std::string_view write_to_place(std::ostream& out, std::string_view text) {
  while (true) {
    const std::size_t brace = text.find_first_of("{}");
    if (brace == std::string_view::npos) {
      out << text;
      return {};
    }
    out << text.substr(0, brace);
    const bool is_place = text[brace] == '{' && text[brace + 1] == '}';
    if (!is_place) out << text[brace];
    text.remove_prefix(brace + 2);
    if (is_place) return text;
  }
}

std::string join(
    std::span<const std::string> items,
    std::string_view separator) {
  std::string out;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += separator;
    out += items[i];
  }
  return out;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> pieces;
  std::size_t begin = 0;
  while (true) {
    const std::size_t end = text.find(separator, begin);
    pieces.emplace_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return pieces;
    begin = end + 1;
  }
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

std::string to_lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

std::string to_upper(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return out;
}

namespace {

template <class Number>
std::optional<Number> parse_all(std::string_view text) {
  Number value{};
  const char* const end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value);
  if (code != std::errc{} || stop != end) return std::nullopt;
  return value;
}

}  // namespace

std::optional<long long> parse_int(std::string_view text) {
  if (text.size() > 1 && text[0] == '+') text.remove_prefix(1);
  return parse_all<long long>(text);
}

std::optional<double> parse_double(std::string_view text) {
  if (text.size() > 1 && text[0] == '+') text.remove_prefix(1);
  return parse_all<double>(text);
}

std::optional<bool> parse_bool(std::string_view text) {
  constexpr std::array<std::string_view, 6> kTrue{
      "y", "yes", "t", "true", "on", "1"};
  constexpr std::array<std::string_view, 6> kFalse{
      "n", "no", "f", "false", "off", "0"};
  const std::string word = to_lower(text);
  if (std::find(kTrue.begin(), kTrue.end(), word) != kTrue.end()) return true;
  if (std::find(kFalse.begin(), kFalse.end(), word) != kFalse.end())
    return false;
  return std::nullopt;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  // Two rows of the Wagner-Fischer table.
  std::vector<std::size_t> previous(b.size() + 1);
  std::vector<std::size_t> current(b.size() + 1);
  std::iota(previous.begin(), previous.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    current[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced =
          previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, replaced});
    }
    std::swap(previous, current);
  }
  return previous[b.size()];
}

std::optional<std::string> nearest(
    std::string_view name,
    std::span<const std::string> known) {
  const std::string* best = nullptr;
  std::size_t best_distance = std::max<std::size_t>(2, name.size() / 3) + 1;
  for (const std::string& candidate : known) {
    const std::size_t distance = edit_distance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = &candidate;
    }
  }
  if (best == nullptr) return std::nullopt;
  return *best;
}

}  // namespace accelerate::detail
