#pragma once

#include <string>
#include <string_view>

#include "base/text/text.h"

namespace accelerate::detail {

/// The text for a format that requires UTF-8; invalid bytes become escapes.
inline std::string utf8_text(std::string_view text) {
  return is_utf8(text) ? std::string(text) : printable(text, 4 * text.size());
}

}  // namespace accelerate::detail
