#pragma once

#include <accelerate/tensor_parallel.h>

namespace accelerate::detail {

/// Lets layers between split layers work on slices of the sequence (the last
/// but one dimension), where the structure shows that nothing else sees the
/// slices: in a Sequential, norms over the last dimension, dropout and
/// activations between a RowwiseParallel and a ColwiseParallel layer of `plan`,
/// which infer_parallelize_plan() made of the module. The sum over the ranks
/// becomes a reduce-scatter, and an all-gather comes before the next product: as
/// many bytes, and each rank has a slice of the activations between. Returns
/// whether there is such a place.
bool divide_sequences(const torch::nn::Module& module, ParallelizePlan& plan);

}  // namespace accelerate::detail
