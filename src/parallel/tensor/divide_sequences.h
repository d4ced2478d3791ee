#pragma once

#include <accelerate/tensor_parallel.h>

namespace accelerate::detail {

/// Lets layers between split layers of `plan`, which infer_parallelize_plan()
/// made of the module, work on slices of the sequence, where the structure shows
/// that nothing else sees the slices. Returns whether there is such a place:
///
/// In a Sequential, norms over the last dimension, dropout and activations
/// between a RowwiseParallel and a ColwiseParallel layer work on slices of the
/// last but one dimension. The sum over the ranks becomes a reduce-scatter, and
/// an all-gather comes before the next product: as many bytes.
///
/// In TransformerEncoderLayer and TransformerDecoderLayer, what comes after the
/// last attention but for its dropout (the norm before the feed-forward, the
/// residual connection around it, its dropout, the norm after it) works on
/// slices of the first dimension. Between layers of TransformerEncoder and
/// TransformerDecoder, and before their last norm, nothing is gathered: the next
/// self-attention, if it is split by heads, takes slices, and returns slices. A
/// decoder's attention to the encoder gets all positions, and so does the first
/// layer, whose residual connection adds the model's input.
bool divide_sequences(const torch::nn::Module& module, ParallelizePlan& plan);

}  // namespace accelerate::detail
