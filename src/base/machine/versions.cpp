#include <algorithm>
#include <array>
#include <compare>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <accelerate/error.h>
#include <accelerate/machine.h>
#include <accelerate/version.h>

#include "base/text/text.h"

namespace accelerate {

namespace {

using detail::format;

// A PEP 440 version; members are compared in this order.
struct Version {
  std::int64_t epoch = 0;
  std::vector<std::int64_t> release = {};
  // The position before, at, or after the release: kind, then number.
  std::pair<int, std::int64_t> pre = {};
  std::int64_t post = -1;
  std::int64_t dev = 0;
  // Numbers sort above words, so each piece is a number, or -1 and the word.
  std::vector<std::pair<std::int64_t, std::string>> local = {};

  auto operator<=>(const Version&) const = default;
};

constexpr int kDevOnly = -1;
constexpr int kNoPre = 3;
constexpr std::int64_t kNoDev = std::numeric_limits<std::int64_t>::max();

class VersionReader {
 public:
  explicit VersionReader(std::string_view text)
      : whole_(text),
        text_(detail::to_lower(detail::trim(text))),
        rest_(text_) {}

  Version read() {
    Version version;
    take("v");
    version.release.push_back(number());
    if (take("!")) {
      version.epoch = version.release.front();
      version.release = {number()};
    }
    while (rest_.size() > 1 && rest_[0] == '.' && is_digit(rest_[1])) {
      take(".");
      version.release.push_back(number());
    }
    // 2.0 and 2.0.0 are equal.
    while (version.release.size() > 1 && version.release.back() == 0)
      version.release.pop_back();
    const bool has_pre = read_pre(version);
    const bool has_post = read_post(version);
    read_dev(version, has_pre || has_post);
    if (take("+")) read_local(version);
    if (!rest_.empty()) fail();
    return version;
  }

 private:
  static bool is_digit(char letter) { return letter >= '0' && letter <= '9'; }
  static bool is_separator(char letter) {
    return letter == '.' || letter == '-' || letter == '_';
  }
  [[noreturn]] void fail() const {
    throw ConfigError(format(
        "[base] a version must be like 2.6, 2.6.1 or 2.6rc1, but is \"{}\"",
        whole_));
  }
  bool take(std::string_view word) {
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }
  std::int64_t number() {
    std::size_t length = 0;
    while (length < rest_.size() && is_digit(rest_[length])) ++length;
    const auto value = detail::parse_int(rest_.substr(0, length));
    if (!value) fail();
    rest_.remove_prefix(length);
    return *value;
  }
  // Takes one of the words, with or without a separator before it.
  bool take_part(std::string_view word) {
    const std::string_view before = rest_;
    if (!rest_.empty() && is_separator(rest_[0])) rest_.remove_prefix(1);
    if (take(word)) return true;
    rest_ = before;
    return false;
  }
  // The number of a part; 0 if it has none.
  std::int64_t part_number() {
    if (rest_.size() > 1 && is_separator(rest_[0]) && is_digit(rest_[1]))
      rest_.remove_prefix(1);
    return !rest_.empty() && is_digit(rest_[0]) ? number() : 0;
  }
  bool read_pre(Version& version) {
    static constexpr std::array<std::pair<std::string_view, int>, 8> kWords{
        {{"alpha", 0},
         {"beta", 1},
         {"preview", 2},
         {"pre", 2},
         {"rc", 2},
         {"a", 0},
         {"b", 1},
         {"c", 2}}};
    for (const auto& [word, kind] : kWords) {
      if (!take_part(word)) continue;
      version.pre = {kind, part_number()};
      return true;
    }
    version.pre = {kNoPre, 0};
    return false;
  }
  bool read_post(Version& version) {
    if (rest_.size() > 1 && rest_[0] == '-' && is_digit(rest_[1])) {
      take("-");
      version.post = number();
      return true;
    }
    for (const std::string_view word : {"post", "rev", "r"}) {
      if (!take_part(word)) continue;
      version.post = part_number();
      return true;
    }
    return false;
  }
  void read_dev(Version& version, bool is_of_part) {
    if (!take_part("dev")) {
      version.dev = kNoDev;
      return;
    }
    version.dev = part_number();
    // 2.0.dev1 is below 2.0a1, but 2.0a1.dev1 only below 2.0a1.
    if (!is_of_part) version.pre = {kDevOnly, 0};
  }
  void read_local(Version& version) {
    if (rest_.empty()) fail();
    std::string text(rest_);
    rest_ = {};
    std::replace_if(text.begin(), text.end(), is_separator, '.');
    for (const std::string& piece : detail::split(text, '.')) {
      const bool is_valid = !piece.empty() &&
          std::all_of(piece.begin(), piece.end(), [](char letter) {
            return is_digit(letter) || (letter >= 'a' && letter <= 'z');
          });
      if (!is_valid) fail();
      const auto value = detail::parse_int(piece);
      if (value) {
        version.local.emplace_back(*value, "");
      } else {
        version.local.emplace_back(-1, piece);
      }
    }
  }

  std::string_view whole_;
  std::string text_;
  std::string_view rest_;
};

}  // namespace

bool compare_versions(
    std::string_view version,
    std::string_view operation,
    std::string_view other) {
  const auto order =
      VersionReader(version).read() <=> VersionReader(other).read();
  if (operation == ">") return order > 0;
  if (operation == ">=") return order >= 0;
  if (operation == "==") return order == 0;
  if (operation == "!=") return order != 0;
  if (operation == "<=") return order <= 0;
  if (operation == "<") return order < 0;
  throw ConfigError(format(
      "[base] the operation of compare_versions() must be one of > >= == != <= "
      "<, but is \"{}\"",
      operation));
}

std::string version() { return ACCELERATE_VERSION; }

}  // namespace accelerate
