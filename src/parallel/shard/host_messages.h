#pragma once

#include <cstddef>
#include <cstdint>

#include <ATen/core/Tensor.h>

#include "parallel/shard/peers.h"
#include "parallel/shard/unshard/block_pool.h"

namespace accelerate::detail {

/// Tags of one unit's messages between ranks: one per parameter, and one for
/// the message that small parameters share. Each kind alternates between two,
/// since a rank may be one round ahead of another.
class HostTags {
 public:
  enum class Kind { gather = 0, reduce = 2 };

  static int count(std::size_t num_parameters) {
    return 4 * (static_cast<int>(num_parameters) + 1);
  }

  /// `first`: the first of count() reserved tags.
  HostTags(int first, Kind kind) : first_(first + static_cast<int>(kind)) {}

  [[nodiscard]] int tag(std::size_t message, std::uint64_t round) const {
    return first_ + 4 * static_cast<int>(message) + static_cast<int>(round % 2);
  }

 private:
  int first_;
};

/// Takes pinned memory for copies to or from a device.
inline at::Tensor
take_pinned(BlockPool& pool, at::IntArrayRef sizes, at::ScalarType dtype) {
  return pool.take(sizes, at::TensorOptions(dtype).pinned_memory(true));
}

}  // namespace accelerate::detail
