#include "parallel/context/dropout_mask.h"

#include <ATen/Functions.h>

#include "gate/parallel_ranges.h"

namespace accelerate::detail {

namespace {

// The output function of SplitMix64 (Steele, Lea and Flood, Fast Splittable
// Pseudorandom Number Generators, 2014).
std::uint64_t scrambled(std::uint64_t state) {
  state += 0x9e3779b97f4a7c15ULL;
  state = (state ^ (state >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  state = (state ^ (state >> 27U)) * 0x94d049bb133111ebULL;
  return state ^ (state >> 31U);
}

// A number in [0, 1), with the 53 bits of a double.
double uniform(std::uint64_t bits) {
  return static_cast<double>(bits >> 11U) * 0x1.0p-53;
}

}  // namespace

at::Tensor DropoutMask::factors(
    std::span<const std::int64_t> query_positions,
    std::span<const std::int64_t> key_positions) const {
  const auto queries = static_cast<std::int64_t>(query_positions.size());
  const auto keys = static_cast<std::int64_t>(key_positions.size());
  at::Tensor mask = at::empty({batch, num_heads, queries, keys}, at::kFloat);
  const float kept =
      probability < 1 ? static_cast<float>(1 / (1 - probability)) : 0.0F;
  auto* const values = mask.mutable_data_ptr<float>();
  constexpr std::int64_t kRowsPerTask = 16;
  for_parallel_ranges(
      batch * num_heads * queries,
      kRowsPerTask,
      [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          const std::int64_t matrix = row / queries;
          std::uint64_t state = seed;
          for (const std::int64_t place :
               {matrix / num_heads,
                first_head + matrix % num_heads,
                query_positions[static_cast<std::size_t>(row % queries)]})
            state = scrambled(state ^ static_cast<std::uint64_t>(place));
          for (std::int64_t i = 0; i < keys; ++i) {
            const auto key = static_cast<std::uint64_t>(
                key_positions[static_cast<std::size_t>(i)]);
            values[row * keys + i] =
                uniform(scrambled(state ^ key)) < probability ? 0.0F : kept;
          }
        }
      });
  return mask;
}

}  // namespace accelerate::detail
