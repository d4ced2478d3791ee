#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace accelerate::detail {

/// Two digits per byte.
std::string hexadecimal(std::string_view bytes);
/// 16 digits.
std::string hexadecimal(std::uint64_t value);

/// RFC 4648, with padding.
std::string base64(std::string_view bytes);

/// 128 random bits from the system, as 32 hexadecimal digits. Throws
/// ConfigError if the system provides none.
std::string random_token();

}  // namespace accelerate::detail
