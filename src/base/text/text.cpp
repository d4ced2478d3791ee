#include "base/text/text.h"

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

bool is_continuation(char c) { return (c & 0xc0) == 0x80; }

struct Character {
  char32_t code = 0;
  /// 0 if the byte does not begin a UTF-8 character.
  std::size_t num_bytes = 0;
};

// The first character of `text`, which must not be empty.
Character first_character(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text.front());
  if (lead < 0x80) return {lead, 1};
  const std::size_t size = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < size) return {};
  char32_t code = lead & (0xffU >> (size + 1));
  for (std::size_t i = 1; i < size; ++i) {
    if (!is_continuation(text[i])) return {};
    code = code << 6U | (static_cast<unsigned char>(text[i]) & 0x3fU);
  }
  const bool is_overlong =
      (size == 3 && code < 0x800) || (size == 4 && code < 0x10000);
  const bool is_surrogate = code >= 0xd800 && code <= 0xdfff;
  if (is_overlong || is_surrogate || code > 0x10ffff) return {};
  return {code, size};
}

// Control characters, line and paragraph separators, and direction marks.
bool changes_the_terminal(char32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x61c ||
      code == 0x200e || code == 0x200f || (code >= 0x2028 && code <= 0x202e) ||
      (code >= 0x2066 && code <= 0x2069);
}

void append_hexadecimal(std::string& out, char32_t code, int num_digits) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  for (int i = num_digits; i-- > 0;) out += kDigits[code >> (4 * i) & 0xfU];
}

void append_escape(std::string& out, char32_t code) {
  if (code == '\n' || code == '\t' || code == '\r') {
    out += code == '\n' ? "\\n" : code == '\t' ? "\\t" : "\\r";
  } else if (code < 0x80) {
    out += "\\x";
    append_hexadecimal(out, code, 2);
  } else {
    out += "\\u";
    append_hexadecimal(out, code, 4);
  }
}

std::string escaped(std::string_view text, std::string_view kept) {
  std::string out;
  out.reserve(text.size());
  const auto is_plain = [](char c) { return c >= ' ' && c <= '~'; };
  while (true) {
    const auto end = std::ranges::find_if_not(text, is_plain);
    out.append(text.begin(), end);
    text.remove_prefix(static_cast<std::size_t>(end - text.begin()));
    if (text.empty()) return out;
    const Character next = first_character(text);
    const std::size_t taken = std::max<std::size_t>(next.num_bytes, 1);
    if (next.num_bytes == 0) {
      out += "\\x";
      append_hexadecimal(out, static_cast<unsigned char>(text.front()), 2);
    } else if (
        changes_the_terminal(next.code) &&
        kept.find(text.front()) == std::string_view::npos) {
      append_escape(out, next.code);
    } else {
      out += text.substr(0, taken);
    }
    text.remove_prefix(taken);
  }
}

}  // namespace

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const Character next = first_character(text);
    if (next.num_bytes == 0) return false;
    text.remove_prefix(next.num_bytes);
  }
  return true;
}

std::string printable(std::string_view text, std::size_t most_bytes) {
  constexpr std::string_view kGap = "...";
  std::string out = escaped(text, "");
  if (out.size() <= most_bytes) return out;
  const std::size_t kept = most_bytes - std::min(most_bytes, kGap.size());
  std::size_t head = (kept + 1) / 2;
  std::size_t tail = out.size() - kept / 2;
  // Do not split characters.
  while (head > 0 && is_continuation(out[head])) --head;
  while (tail < out.size() && is_continuation(out[tail])) ++tail;
  return format(
      "{}{}{}",
      std::string_view(out).substr(0, head),
      kGap,
      std::string_view(out).substr(tail));
}

std::string printable_lines(std::string_view text) {
  return escaped(text, "\n\t");
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

std::size_t num_columns_of(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  }));
}

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
  if (std::ranges::find(kTrue, word) != kTrue.end()) return true;
  if (std::ranges::find(kFalse, word) != kFalse.end()) return false;
  return std::nullopt;
}

namespace {

// The number of single-character edits that turn one string into the other, or
// `enough` if it is not less.
std::size_t edit_distance_below(
    std::string_view a,
    std::string_view b,
    std::size_t enough) {
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
    // No row has a lower minimum than the previous one.
    if (*std::ranges::min_element(previous) >= enough) return enough;
  }
  return std::min(previous[b.size()], enough);
}

}  // namespace

std::optional<std::string> nearest(
    std::string_view name,
    std::span<const std::string> known) {
  // Comparison takes time in the product of the lengths, and a name this long
  // is not a typo.
  constexpr std::size_t kMostBytes = 500;
  if (name.size() > kMostBytes) return std::nullopt;
  const std::string* best = nullptr;
  std::size_t best_distance = std::max<std::size_t>(2, name.size() / 4) + 1;
  for (const std::string& candidate : known) {
    // At least this many characters have to be inserted.
    const std::size_t difference = std::max(name.size(), candidate.size()) -
        std::min(name.size(), candidate.size());
    if (difference >= best_distance) continue;
    const std::size_t distance =
        edit_distance_below(name, candidate, best_distance);
    if (distance < best_distance) {
      best_distance = distance;
      best = &candidate;
    }
  }
  if (best == nullptr) return std::nullopt;
  return *best;
}

}  // namespace accelerate::detail
