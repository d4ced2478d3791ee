#pragma once

#include <cstdint>

namespace accelerate::detail {

/// A random permutation of 0 .. size-1 as a function, in constant memory and
/// with random access. Equal keys give equal orders on every machine.
///
/// A Feistel network over the smallest even number of bits that holds `size`,
/// applied until the value is inside (Black and Rogaway, "Ciphers with
/// Arbitrary Finite Domains", 2002). Not cryptographically secure.
class Permutation {
 public:
  Permutation(std::int64_t size, std::uint64_t seed, std::uint64_t epoch);

  [[nodiscard]] std::int64_t size() const { return size_; }
  /// The value at `position`; both are in 0 .. size-1.
  [[nodiscard]] std::int64_t operator()(std::int64_t position) const;

 private:
  static constexpr int kRounds = 6;

  std::int64_t size_;
  int half_bits_ = 1;
  std::uint64_t half_mask_ = 1;
  std::uint64_t keys_[kRounds];
};

}  // namespace accelerate::detail
