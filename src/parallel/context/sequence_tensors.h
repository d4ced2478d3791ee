#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <accelerate/attention.h>
#include <accelerate/sequence_shards.h>
#include <accelerate/world.h>

namespace accelerate::detail {

/// Returns a query, key or value with 4 dimensions: tensors of 2 or 3
/// dimensions get a batch or heads dimension of size 1. Throws ConfigError for
/// others.
at::Tensor with_heads(const at::Tensor& tensor);

/// Throws ConfigError unless `length` is the number of positions per rank of
/// `group`.
void check_local_length(
    std::int64_t length,
    const Group& group,
    const SequenceShards& shards);

/// Returns the options' dropout seed, or one that all ranks of the group agree
/// on: each draws a number, so that their generators stay in step, and the
/// first rank's is used. 0 without dropout.
std::uint64_t dropout_seed(
    const SequenceAttentionOptions& options,
    const Group& group);

/// Returns the positions of `rank` along `dim` of a tensor of the whole
/// sequence, with `fill` where the sequence is padded. The tensor may already
/// have the padding. A copy, unless one rank has all. Throws ConfigError if the
/// size does not fit.
at::Tensor local_positions(
    const at::Tensor& tensor,
    std::int64_t dim,
    const SequenceShards& shards,
    int rank,
    const at::Scalar& fill);

/// Gathers the whole sequence along `dim`, in order and without padding, from
/// each rank's positions. Backward sums the gradient over the ranks, and gives
/// each its positions. Throws ConfigError if this rank has the wrong number of
/// positions. Collective.
at::Tensor gather_positions(
    const at::Tensor& own,
    std::int64_t dim,
    const Group& group,
    const SequenceShards& shards);

}  // namespace accelerate::detail
