#include "base/standard_output.h"

#include <cstdio>
#include <string>

namespace accelerate::detail {

void write_line_to_standard_output(std::string_view line) {
  std::string text(line);
  text += '\n';
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace accelerate::detail
