#pragma once

#include <string_view>

namespace accelerate::detail {

/// Whether a dotted name is matched by a pattern. `*` stands for any characters
/// of one part of the name, `?` for one, and a part `**` for any number of
/// parts, none included.
bool matches_name(std::string_view pattern, std::string_view name);

}  // namespace accelerate::detail
