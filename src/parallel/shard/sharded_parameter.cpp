#include "parallel/shard/sharded_parameter.h"

#include <ATen/TensorOperators.h>

#include "parallel/disk/disk_shards.h"

namespace accelerate::detail {

namespace {
constexpr std::size_t kSmallBytes = 32 << 10;
}  // namespace

std::vector<std::int64_t> row_begins(std::int64_t num_rows, int num_ranks) {
  std::vector<std::int64_t> begins;
  for (int rank = 0; rank <= num_ranks; ++rank)
    begins.push_back(num_rows * rank / num_ranks);
  return begins;
}

at::Tensor rows_between(
    const at::Tensor& tensor,
    const std::vector<std::int64_t>& begins,
    int rank) {
  const auto r = static_cast<std::size_t>(rank);
  return tensor.narrow(0, begins[r], begins[r + 1] - begins[r]);
}

at::Tensor ShardedParameter::rows_of(const at::Tensor& tensor, int rank) const {
  return rows_between(tensor, row_begins, rank);
}

bool ShardedParameter::is_small() const { return full.nbytes() < kSmallBytes; }

bool ShardedParameter::is_in_place() const {
  if (gate) return !gate->is_bypassed();
  return memory == nullptr || full.storage().data() == memory;
}

at::Tensor ShardedParameter::take_gradient() const {
  at::Tensor gradient = full.grad();
  full.mutable_grad().reset();
  if (!gradient.defined()) return gradient;
  if (gradient.is_sparse()) gradient = gradient.to_dense();
  return gradient.to(reduced_in()).contiguous();
}

void ShardedParameter::add_gradient(const at::Tensor& mean) const {
  at::Tensor& gradient = local.mutable_grad();
  DiskTensors* const keeper =
      disk != nullptr ? disk->gradient_keeper() : nullptr;
  if (keeper != nullptr && !gradient.defined()) {
    gradient =
        keeper->make(local.sizes(), at::TensorOptions(local.scalar_type()));
    const HeldTensors held({gradient}, DiskUse::replace);
    gradient.copy_(mean);
  } else if (gradient.defined()) {
    const HeldTensors held({gradient}, DiskUse::change);
    gradient.add_(mean);
  } else {
    gradient = mean;
  }
}

std::int64_t UnitShards::num_elements() const {
  std::int64_t elements = 0;
  for (const ShardedParameter& parameter : parameters)
    elements += parameter.local.numel();
  return elements;
}

}  // namespace accelerate::detail
