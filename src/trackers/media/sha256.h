#pragma once

#include <string>
#include <string_view>

namespace accelerate::detail {

/// SHA-256 (FIPS 180-4), as 64 hexadecimal digits.
std::string sha256_digits(std::string_view bytes);

}  // namespace accelerate::detail
