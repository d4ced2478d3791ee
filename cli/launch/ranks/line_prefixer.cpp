#include "cli/launch/ranks/line_prefixer.h"

namespace accelerate::cli {

std::string LinePrefixer::feed(std::string_view piece) {
  std::string out;
  for (const char c : piece) {
    // "\r\n" is one line end.
    const bool is_second_half =
        c == '\n' && after_carriage_return_ && line_.empty();
    after_carriage_return_ = c == '\r';
    if (is_second_half) {
      out += '\n';
      continue;
    }
    line_ += c;
    const bool ends_line = c == '\n' || c == '\r';
    if (!ends_line && line_.size() < kMostBytes) continue;
    // A carriage return on an empty line only moves the cursor.
    if (!is_continued_ && line_ != "\r") out += prefix_;
    out += line_;
    line_.clear();
    is_continued_ = !ends_line;
  }
  return out;
}

std::string LinePrefixer::finish() {
  if (line_.empty() && !is_continued_) return {};
  std::string out = (is_continued_ ? std::string() : prefix_) + line_ + '\n';
  line_.clear();
  is_continued_ = false;
  return out;
}

}  // namespace accelerate::cli
