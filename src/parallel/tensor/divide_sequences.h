#pragma once

#include <accelerate/tensor_parallel.h>

namespace accelerate::detail {

/// Makes layers between split layers of `plan`, which infer_parallelize_plan()
/// made for the module, work on slices of the sequence, where the module's
/// structure shows that nothing else sees the slices. Returns whether there is
/// such a place:
///
/// In a Sequential, norms over the last dimension, dropout and activations
/// between a RowwiseParallel and a ColwiseParallel layer work on slices of the
/// second-to-last dimension. The all-reduce becomes a reduce-scatter, and an
/// all-gather precedes the next product: the same number of bytes.
///
/// In TransformerEncoderLayer and TransformerDecoderLayer, everything after the
/// last attention except its dropout (the norm before the feed-forward, the
/// residual connection around it, its dropout, the norm after it) works on
/// slices of the first dimension. Between layers of TransformerEncoder and
/// TransformerDecoder, and before their last norm, nothing is gathered: the
/// next self-attention, if it is split by heads, takes and returns slices. A
/// decoder's cross-attention gets all positions, and so does the first layer,
/// whose residual connection adds the model's input.
bool divide_sequences(const torch::nn::Module& module, ParallelizePlan& plan);

}  // namespace accelerate::detail
