#include "data/loading/place_batch.h"

#include <vector>

namespace accelerate::detail {

void place_batch(LoadedBatch& batch, at::Device device, bool non_blocking) {
  batch.visit([&](at::Tensor& tensor) {
    if (tensor.defined() && tensor.device() != device)
      tensor = tensor.to(device, non_blocking);
  });
}

void divide_sequences(
    LoadedBatch& batch,
    const LoaderContext& context,
    const BatchSequences& sequences) {
  if (sequences.dims.empty() || !context.divide) return;
  std::vector<at::Tensor*> tensors;
  batch.visit([&](at::Tensor& tensor) { tensors.push_back(&tensor); });
  context.divide(sequences, tensors);
}

}  // namespace accelerate::detail
