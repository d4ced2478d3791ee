#include "cli/line_prefixer.h"

namespace accelerate::cli {

std::string LinePrefixer::feed(std::string_view piece) {
  std::string out;
  for (const char c : piece) {
    // "\r\n" is one end of line.
    const bool is_second_half =
        c == '\n' && after_carriage_return_ && line_.empty();
    after_carriage_return_ = c == '\r';
    if (is_second_half) {
      out += '\n';
      continue;
    }
    line_ += c;
    if (c != '\n' && c != '\r') continue;
    // A carriage return on an empty line only moves the cursor.
    if (line_ != "\r") out += prefix_;
    out += line_;
    line_.clear();
  }
  return out;
}

std::string LinePrefixer::finish() {
  if (line_.empty()) return {};
  std::string out = prefix_ + line_ + '\n';
  line_.clear();
  return out;
}

}  // namespace accelerate::cli
