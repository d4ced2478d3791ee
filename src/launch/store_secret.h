#pragma once

#include <string>

namespace accelerate::detail {

/// 128 random bits of the system as 32 hexadecimal digits. Throws ConfigError
/// if the system has none.
std::string make_store_secret();

}  // namespace accelerate::detail
