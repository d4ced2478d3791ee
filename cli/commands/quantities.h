#pragma once

#include <cstdint>
#include <string>

namespace accelerate::cli {

/// "400TF", "1.2 PFLOPS", "4e14": operations per second. Throws ConfigError for
/// other text. `flag` is named in errors.
double parse_flops(const std::string& flag, const std::string& text);
/// "400Gb/s" (bits), "50GB/s": bytes per second.
double parse_rate(const std::string& flag, const std::string& text);
/// "8us", "1.5ms", "2e-6": seconds.
double parse_seconds(const std::string& flag, const std::string& text);
/// "4M", "512K", "4194304": a count, where K is 1024 and M its square.
std::int64_t parse_count(const std::string& flag, const std::string& text);

}  // namespace accelerate::cli
