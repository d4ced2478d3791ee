#pragma once

#include <cstddef>
#include <ostream>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include <accelerate/export.h>

namespace accelerate::detail {

/// A message's format string, checked at compile time: one `{}` per value; `{{`
/// and `}}` stand for braces.
template <std::size_t num_values>
class MessageText {
 public:
  template <std::size_t size>
  consteval MessageText(const char (&text)[size]) : text_(text, size - 1) {
    std::size_t num_places = 0;
    for (std::size_t i = 0; i < text_.size(); ++i) {
      if (text_[i] != '{' && text_[i] != '}') continue;
      const char next = i + 1 < text_.size() ? text_[i + 1] : ' ';
      if (text_[i] == '{' && next == '}') {
        ++num_places;
      } else if (next != text_[i]) {
        throw "a single brace: write {{ or }}";
      }
      ++i;
    }
    if (num_places != num_values) throw "the format must have one {} per value";
  }
  [[nodiscard]] constexpr std::string_view text() const { return text_; }

 private:
  std::string_view text_;
};

/// Writes `text` up to its next `{}`, if any; returns the text after it.
ACCELERATE_API std::string_view write_to_place(
    std::ostream& out,
    std::string_view text);

struct Format {
  template <class... Values>
  std::string operator()(
      MessageText<sizeof...(Values)> message,
      const Values&... values) const {
    std::ostringstream out;
    std::string_view rest = message.text();
    (((rest = write_to_place(out, rest)), (out << values)), ...);
    write_to_place(out, rest);
    return std::move(out).str();
  }
};

/// Streams each value into its place: format("rank {} of {}", rank, size). It
/// is an object so that argument-dependent lookup never finds std::format
/// instead.
inline constexpr Format format;

}  // namespace accelerate::detail
