#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace accelerate::detail {

/// Bytes named by a text such as "10GB" (powers of 1000) or "1.5GiB" (powers
/// of 1024), as Accelerate reads it: the units are KB, MB, GB, KiB, MiB, GiB in
/// any case, but a last "b" after a power of 1000 means bits; digits may be
/// grouped by "_". Throws ConfigError otherwise, and for numbers below 0.
std::int64_t parse_size(std::string_view text);

/// Bytes of one element of a dtype as Accelerate names it, "float16" or "fp8";
/// below one for "int4" and "int2". Throws ConfigError for another name.
double dtype_bytes(std::string_view dtype);

/// A size for people: "1.5 GB" (powers of 1024, as Accelerate prints them).
std::string format_size(double bytes);

}  // namespace accelerate::detail
