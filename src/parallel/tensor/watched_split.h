#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "parallel/tensor/split_layers.h"

namespace accelerate::detail {

/// A gated parameter of which this rank has a slice.
struct WatchedSplit {
  SplitParameter split;
  std::vector<std::int64_t> global_shape;
  std::vector<std::int64_t> local_shape;
  /// The first index of each rank's slice, and the end.
  std::vector<std::int64_t> begins;

  [[nodiscard]] std::vector<std::int64_t> sizes() const;
  /// The dimension of a product's weight that its inputs are.
  [[nodiscard]] std::size_t input_dim() const {
    return split.product && split.product->is_transposed ? 0 : 1;
  }
  /// The dimension that a layer with this weight mixes, counted from the end:
  /// the last one, or a convolution's channels.
  [[nodiscard]] std::int64_t feature_dim() const {
    return 1 - static_cast<std::int64_t>(global_shape.size());
  }
  /// Whether the result of a product is a slice of columns, to which a local
  /// bias belongs.
  [[nodiscard]] bool returns_columns() const {
    return !split.product->is_rowwise &&
        slice_in(split.product->output) != nullptr;
  }
};

}  // namespace accelerate::detail
