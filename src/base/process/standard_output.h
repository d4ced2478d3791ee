#pragma once

#include <string_view>

namespace accelerate::detail {

/// Writes the line and a newline in one call, so that lines from several
/// threads do not mix.
void write_line_to_standard_output(std::string_view line);

}  // namespace accelerate::detail
