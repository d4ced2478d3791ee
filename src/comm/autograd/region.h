#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/world.h>

namespace accelerate::detail {

// Collectives that autograd records, around a region of the model that the
// ranks of a group compute together, each with its own weights (Shoeybi et al.,
// "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
// Parallelism", 2019; Korthikanti et al., "Reducing Activation Recomputation in
// Large Transformer Models", 2022). All ranks call them in the same order, in
// forward and in backward. They can be differentiated any number of times. With
// one rank, each is the identity. `dim` may be negative.

/// Passes a tensor that is the same on all ranks into a region. Backward sums
/// the ranks' gradients of it.
at::Tensor copy_to_region(const at::Tensor& tensor, const Group& group);

/// Sums the results that each rank of a region has computed. The sum is the
/// same on all ranks, and so is its gradient, which backward passes on
/// unchanged.
at::Tensor reduce_from_region(const at::Tensor& tensor, const Group& group);

/// How the ranks' gradients of a gathered tensor are related.
enum class GatheredGradient {
  /// Each rank has a summand: backward sums and slices (reduce-scatter).
  partial,
  /// All ranks have the same gradient: backward slices.
  equal,
};

/// Concatenates the tensors of all ranks along `dim`. `sizes`, one per rank,
/// are their sizes along it; without them, ranks first exchange their sizes.
/// Throws ConfigError if this rank's size differs.
at::Tensor gather_from_region(
    const at::Tensor& tensor,
    std::int64_t dim,
    const Group& group,
    GatheredGradient gradient,
    std::span<const std::int64_t> sizes = {});

/// Returns this rank's slice along `dim` (slice_begins) of a tensor that is the
/// same on all ranks. Backward gathers the gradients of all slices.
at::Tensor
slice_to_region(const at::Tensor& tensor, std::int64_t dim, const Group& group);

/// Sums the tensors of all ranks, and returns this rank's slice along `dim`
/// (slice_begins). Backward gathers the gradients of all slices.
at::Tensor reduce_scatter_to_region(
    const at::Tensor& tensor,
    std::int64_t dim,
    const Group& group);

/// Returns the first index of each rank's slice of `size` indices, and the end:
/// the slice of rank r of R begins at floor(size r / R).
std::vector<std::int64_t> slice_begins(std::int64_t size, int num_ranks);

}  // namespace accelerate::detail
