#include "base/process/standard_output.h"

#include <cstdio>
#include <string>

#include "base/progress/screen.h"

namespace accelerate::detail {

void write_line_to_standard_output(std::string_view line) {
  std::string text(line);
  text += '\n';
  // Standard output is usually the same terminal as standard error, where
  // progress bars may be.
  ProgressScreen::of_standard_error().print_above([&] {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  });
}

}  // namespace accelerate::detail
