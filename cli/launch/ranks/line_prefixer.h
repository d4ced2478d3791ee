#pragma once

#include <string>
#include <string_view>

namespace accelerate::cli {

/// Prefixes every line of a stream that arrives in pieces, and passes on only
/// complete lines, so that lines from several ranks do not mix. A carriage
/// return also ends a line, for progress bars. Lines longer than kMostBytes are
/// passed on in pieces.
class LinePrefixer {
 public:
  static constexpr std::size_t kMostBytes = 1U << 16U;

  explicit LinePrefixer(std::string prefix) : prefix_(std::move(prefix)) {}

  /// Returns the lines that `piece` completes, with prefixes.
  std::string feed(std::string_view piece);
  /// Returns an unfinished last line, with a line end.
  std::string finish();

 private:
  std::string prefix_;
  std::string line_;
  bool is_continued_ = false;  // its beginning has been passed on
  bool after_carriage_return_ = false;
};

}  // namespace accelerate::cli
