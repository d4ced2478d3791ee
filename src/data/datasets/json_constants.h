#pragma once

#include <string_view>

#include "base/text/json_text.h"

namespace accelerate::detail {

/// Parses JSON as Python's json module reads and writes it: with NaN, Infinity
/// and -Infinity as numbers. Rejects a byte order mark. Does not throw.
ParsedJson parse_json_of_python(std::string_view text);

}  // namespace accelerate::detail
