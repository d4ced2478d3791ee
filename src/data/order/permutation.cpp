#include "data/order/permutation.h"

#include "data/mix.h"

namespace accelerate::detail {

Permutation::Permutation(
    std::int64_t size,
    std::uint64_t seed,
    std::uint64_t epoch)
    : size_(size) {
  while ((std::uint64_t{1} << (2 * half_bits_)) <
         static_cast<std::uint64_t>(size))
    ++half_bits_;
  half_mask_ = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t state = mix(seed) ^ mix(~epoch);
  for (std::uint64_t& key : keys_) key = state = mix(state);
}

std::int64_t Permutation::operator()(std::int64_t position) const {
  auto value = static_cast<std::uint64_t>(position);
  do {
    std::uint64_t left = value >> half_bits_;
    std::uint64_t right = value & half_mask_;
    for (const std::uint64_t key : keys_) {
      const std::uint64_t next = left ^ (mix(right ^ key) & half_mask_);
      left = right;
      right = next;
    }
    value = left << half_bits_ | right;
  } while (value >= static_cast<std::uint64_t>(size_));
  return static_cast<std::int64_t>(value);
}

}  // namespace accelerate::detail
