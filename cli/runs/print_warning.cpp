#include "cli/runs/print_warning.h"

#include <cstdio>

#include "base/text/text.h"

namespace accelerate::cli {

void print_warning(const std::string& text) {
  std::fprintf(
      stderr,
      "accelerate-cpp: %s\n",
      detail::printable(text, text.npos).c_str());
}

}  // namespace accelerate::cli
