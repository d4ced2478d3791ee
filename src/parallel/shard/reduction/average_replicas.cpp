#include "parallel/shard/reduction/average_replicas.h"

#include "gate/disk/disk_tensors.h"
#include "parallel/replicate/average_gradients.h"

namespace accelerate::detail {

void average_shards(
    const Group& replicas,
    const std::vector<at::Tensor>& shards,
    const ShardOptions& options) {
  const auto average = [&](const std::vector<at::Tensor>& some) {
    average_gradients(
        replicas,
        some,
        {.send_in = options.replica_dtype,
         .message_bytes = options.message_bytes});
  };
  if (!options.disk || !options.disk->keeps_optimizer_state)
    return average(shards);
  if (replicas.size() == 1) return;
  // One at a time, since their gradients lie in files.
  for (const at::Tensor& shard : shards) {
    const HeldTensors held({shard.grad()}, DiskUse::change);
    average({shard});
  }
}

void average_unsharded(
    const Group& group,
    const std::vector<at::Tensor>& parameters,
    const ShardOptions& options) {
  std::vector<at::Tensor> trained;
  for (const at::Tensor& tensor : parameters) {
    if (tensor.requires_grad()) trained.push_back(tensor);
  }
  average_gradients(
      group,
      trained,
      {.sum_in = at::kDouble, .message_bytes = options.message_bytes});
}

}  // namespace accelerate::detail
