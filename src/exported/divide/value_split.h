#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace accelerate::detail {

/// How the ranks that share a layer divide a value of a program.
struct ValueSplit {
  /// The one dimension that is divided.
  std::int64_t dim = 0;
  /// The first index of each rank's slice, and the end. Empty for a size that
  /// varies from run to run (positions of a sequence), which is divided evenly.
  std::vector<std::int64_t> begins = {};
  /// The layer from whose result it comes, for messages.
  std::string layer = {};

  [[nodiscard]] bool is_like(const ValueSplit& other) const {
    return dim == other.dim && begins == other.begins;
  }
  [[nodiscard]] std::int64_t num_ranks() const {
    return static_cast<std::int64_t>(begins.size()) - 1;
  }
};

/// Where a view, or a copy in the same order, has a dimension of its input.
struct ViewedDim {
  std::int64_t dim = 0;
  /// Numbers of elements of one index: of the input's dimension, and of this
  /// one.
  std::int64_t from_stride = 1;
  std::int64_t to_stride = 1;
};

/// Finds the dimension of the result that slices of `dim` slice. `from` and
/// `to` are the sizes before and after, none below 1. Unset if the result has
/// no such dimension, as when (batch, heads) becomes one dimension.
std::optional<ViewedDim> viewed_dim(
    std::int64_t dim,
    const std::vector<std::int64_t>& from,
    const std::vector<std::int64_t>& to);

/// Multiplies where slices begin by `from` and divides by `to`; unset if that
/// is no whole number.
std::optional<std::vector<std::int64_t>> rescaled(
    const std::vector<std::int64_t>& begins,
    std::int64_t from,
    std::int64_t to);

}  // namespace accelerate::detail
