#pragma once

#include <string>

namespace accelerate::cli {

/// Prints a line to standard error, under the tool's name.
void print_warning(const std::string& text);

}  // namespace accelerate::cli
