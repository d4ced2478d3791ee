#pragma once

#include <string_view>

namespace accelerate::detail {

/// The line and a newline, at once, so that lines of several threads do not
/// mix.
void write_line_to_standard_output(std::string_view line);

}  // namespace accelerate::detail
