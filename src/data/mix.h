#pragma once

#include <cstdint>

namespace accelerate::detail {

/// Finalizer of SplitMix64 (Steele, Lea and Flood, 2014): each bit of `x`
/// affects about half of the bits of the result.
constexpr std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace accelerate::detail
