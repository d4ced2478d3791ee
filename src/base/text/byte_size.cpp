#include <accelerate/byte_size.h>

#include <accelerate/error.h>

#include "base/text/sizes.h"
#include "base/text/text.h"

namespace accelerate {

ByteSize::ByteSize(std::int64_t bytes) : bytes_(bytes) {
  if (bytes < 0) {
    throw ConfigError(
        detail::format("[base] a size of {} bytes is negative", bytes));
  }
}

ByteSize::ByteSize(const std::string& text)
    : bytes_(detail::parse_size(text)) {}

std::string convert_bytes(double bytes) { return detail::format_size(bytes); }

}  // namespace accelerate
