#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace accelerate::detail {

/// Bytes named by a text such as "10GB" (powers of 1000) or "1.5GiB" (powers
/// of 1024); a bare number is bytes. Case matters only for a trailing "b",
/// which means bits, as in Accelerate. Throws ConfigError otherwise.
std::int64_t parse_size(std::string_view text);

/// A size for people: "1.50 GB" (powers of 1024, as Accelerate prints them).
std::string format_size(std::int64_t bytes);

}  // namespace accelerate::detail
