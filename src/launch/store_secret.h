#pragma once

#include <string>

namespace accelerate::detail {

/// Returns 128 random bits from the system as 32 hexadecimal digits. Throws
/// ConfigError if the system provides none.
std::string make_store_secret();

}  // namespace accelerate::detail
