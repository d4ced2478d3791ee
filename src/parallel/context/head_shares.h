#pragma once

#include <cstdint>
#include <vector>

namespace accelerate::detail {

/// The heads that one rank computes in Ulysses attention.
struct HeadShare {
  /// The query heads.
  std::int64_t first = 0;
  std::int64_t count = 0;
  /// The heads of keys and values that serve these query heads. Ranks may share
  /// one.
  std::int64_t first_key = 0;
  std::int64_t key_count = 0;

  /// The key head, counted from first_key, of each query head.
  [[nodiscard]] std::vector<std::int64_t> key_of_each(
      std::int64_t group_size) const;
  /// True if each key head serves as many query heads as in the whole model.
  [[nodiscard]] bool has_whole_groups(std::int64_t group_size) const {
    return count == key_count * group_size;
  }
};

/// Divides heads among ranks; if they do not divide evenly, the first ranks get
/// one more. `num_key_heads` divides `num_heads`.
std::vector<HeadShare>
divide_heads(std::int64_t num_heads, std::int64_t num_key_heads, int num_ranks);

}  // namespace accelerate::detail
