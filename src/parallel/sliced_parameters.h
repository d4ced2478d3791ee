#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/world.h>

#include "params/layout.h"

namespace accelerate::detail {

/// Gives `tensor` the memory and shape of `slice`, visible through every handle
/// to it, and drops its gradient. If it is watched (gate/), it stays watched.
void become_slice(const at::Tensor& tensor, const at::Tensor& slice);

/// The indices of a dimension that each rank of a group has: a list of ranges
/// per rank.
using RangesByRank = std::vector<std::vector<IndexRange>>;

/// Gives rank r the indices begins[r] to begins[r + 1].
RangesByRank ranges_between(const std::vector<std::int64_t>& begins);

/// Parameters that are replaced with a slice on each rank of a group, and can
/// be made full for a while.
class SlicedParameters {
 public:
  /// `tensor` is this rank's slice; `ranges` are along `dim`.
  void add(
      const at::Tensor& tensor,
      std::int64_t dim,
      RangesByRank ranges,
      const Group& group);

  /// Makes all parameters full. Collective.
  void open();
  /// Makes them slices again, of their current values.
  void close();

 private:
  struct Slice {
    at::Tensor tensor;
    std::int64_t dim = 0;
    RangesByRank ranges = {};
    std::vector<std::int64_t> sizes = {};  ///< one per rank
    Group group = {};
    /// The slice, and the full parameter, while the tensor is the latter.
    at::Tensor kept = {};
    at::Tensor shown = {};
    std::int64_t version = 0;

    /// Puts `slices`, those of all ranks one after another, into the
    /// parameter's order.
    [[nodiscard]] at::Tensor full(const at::Tensor& slices) const;
    /// This rank's slice of the full parameter.
    [[nodiscard]] at::Tensor own(const at::Tensor& parameter) const;
  };

  std::vector<Slice> slices_;
};

}  // namespace accelerate::detail
