#pragma once

#include <string>
#include <string_view>

namespace accelerate::cli {

/// Puts a prefix before every line of a stream that arrives in pieces, and
/// lets only whole lines through, so that lines of several ranks do not mix. A
/// carriage return ends a line too: progress bars stay alive. Lines longer than
/// kMostBytes come through in pieces.
class LinePrefixer {
 public:
  static constexpr std::size_t kMostBytes = 1U << 16U;

  explicit LinePrefixer(std::string prefix) : prefix_(std::move(prefix)) {}

  /// The lines that `piece` completes, each behind the prefix.
  std::string feed(std::string_view piece);
  /// What is left without a line end, given one.
  std::string finish();

 private:
  std::string prefix_;
  std::string line_;
  bool is_continued_ = false;  // its begin has been let through
  bool after_carriage_return_ = false;
};

}  // namespace accelerate::cli
