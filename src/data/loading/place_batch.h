#pragma once

#include <ATen/core/Tensor.h>

#include <accelerate/batch_sequences.h>
#include <accelerate/detail/loaded_batch.h>
#include <accelerate/detail/loader_context.h>

namespace accelerate::detail {

/// Puts every tensor of the batch on `device`.
void place_batch(LoadedBatch& batch, at::Device device, bool non_blocking);

/// Divides the sequences of the batch, if there are any to divide.
void divide_sequences(
    LoadedBatch& batch,
    const LoaderContext& context,
    const BatchSequences& sequences);

}  // namespace accelerate::detail
