#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/world.h>

#include "parallel/attention/causal_masks.h"

namespace accelerate::detail {

/// The heads that each rank of a group computes.
struct SplitHeads {
  Group group;
  /// The first head of each rank, and the end.
  std::vector<std::int64_t> begins;
  /// Owns the random region in which a rank computes its heads.
  const void* region_owner = nullptr;

  [[nodiscard]] std::int64_t first() const {
    return begins[static_cast<std::size_t>(group.rank())];
  }
  [[nodiscard]] std::int64_t count() const {
    return begins[static_cast<std::size_t>(group.rank()) + 1] - first();
  }
  /// Number of columns per rank, for heads of this size.
  [[nodiscard]] std::vector<std::int64_t> columns(
      std::int64_t head_size) const {
    std::vector<std::int64_t> all;
    for (std::size_t i = 0; i + 1 < begins.size(); ++i)
      all.push_back((begins[i + 1] - begins[i]) * head_size);
    return all;
  }
};

/// A MultiheadAttention that ranks compute together.
struct AttentionLayer {
  /// The module's name.
  std::string name;
  std::int64_t num_heads = 1;
  std::int64_t head_size = 1;
  /// Set if the rows of its projections are split by heads.
  std::optional<SplitHeads> split = std::nullopt;
  /// True if its projections are separate weights, full on every rank.
  bool is_separate = false;
  /// True if its last layer takes the outputs of this rank's heads.
  bool out_takes_heads = false;
  std::shared_ptr<CausalMasks> causal_masks = std::make_shared<CausalMasks>();

  [[nodiscard]] std::int64_t width() const { return num_heads * head_size; }
  [[nodiscard]] std::int64_t own_width() const {
    return split ? split->count() * head_size : width();
  }
};

/// The heads that a call of the layer computes on this rank: all, or this
/// rank's share.
struct ComputedHeads {
  std::int64_t first = 0;
  std::int64_t count = 1;
};

}  // namespace accelerate::detail
