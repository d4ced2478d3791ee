#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace accelerate::detail {

/// Parses a size as Accelerate does: "10GB" (powers of 1000) or "1.5GiB"
/// (powers of 1024). Units are KB, MB, GB, KiB, MiB, GiB in any case, except
/// that a final "b" after a power of 1000 means bits; digits may be grouped
/// with "_". Returns bytes. Throws ConfigError for other text and for negative
/// numbers.
std::int64_t parse_size(std::string_view text);

/// Bytes of one element of a dtype as Accelerate names it, "float16" or "fp8";
/// less than one for "int4" and "int2". Throws ConfigError for any other name.
double dtype_bytes(std::string_view dtype);

/// A human-readable size: "1.5 GB" (powers of 1024, as Accelerate prints them).
std::string format_size(double bytes);

}  // namespace accelerate::detail
