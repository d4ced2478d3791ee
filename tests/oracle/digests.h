#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>

#include "trackers/media/sha256.h"

namespace accelerate::oracle {

/// FNV-1a, 64 bits, as 16 hexadecimal digits.
inline std::string fnv1a64(std::span<const std::byte> bytes) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const std::byte each : bytes) {
    hash = (hash ^ std::to_integer<std::uint64_t>(each)) * 0x100000001b3;
  }
  char text[17];
  std::snprintf(
      text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

/// SHA-256, as 64 hexadecimal digits.
inline std::string sha256(std::span<const std::byte> bytes) {
  return detail::sha256_digits(
      {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

}  // namespace accelerate::oracle
