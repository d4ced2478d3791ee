#pragma once

#include <cstdint>

#include <accelerate/attention.h>

namespace accelerate::detail {

/// ring_attention() of 4-dimensional tensors that are known to fit.
/// `first_head`: the model's index of the query's first head, on which dropout
/// depends. `seed`: for dropout.
at::Tensor attend_in_ring(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const Group& group,
    const SequenceShards& shards,
    const SequenceAttentionOptions& options,
    std::int64_t first_head,
    std::uint64_t seed);

}  // namespace accelerate::detail
