#include "parallel/attention/causal_masks.h"

#include <algorithm>
#include <limits>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

namespace accelerate::detail {

namespace {

constexpr std::size_t kMostKnown = 8;

// Padded queries may attend to anything.
bool is_causal_here(const at::Tensor& mask, const DividedSequence& sequence) {
  const SequenceShards& shards = sequence.shards;
  if (mask.size(1) != shards.length()) return false;
  std::vector<std::int64_t> positions = shards.positions(sequence.group.rank());
  const auto padding = std::ranges::find_if(
      positions,
      [&](std::int64_t position) { return position >= shards.length(); });
  positions.erase(padding, positions.end());
  const auto device = mask.device();
  const at::Tensor queries = at::tensor(positions, at::kLong).to(device);
  const at::Tensor keys =
      at::arange(shards.length(), at::dtype(at::kLong).device(device));
  const at::Tensor own =
      mask.narrow(0, 0, static_cast<std::int64_t>(positions.size()));
  const at::Tensor causal = at::zeros(own.sizes(), own.options())
                                .masked_fill_(
                                    keys.gt(queries.unsqueeze(1)),
                                    -std::numeric_limits<double>::infinity());
  return at::equal(own, causal);
}

}  // namespace

bool CausalMasks::is_causal(
    const at::Tensor& mask,
    const DividedSequence& sequence) {
  const at::NoGradGuard no_grad;
  const std::int64_t version =
      mask.is_inference() ? 0 : static_cast<std::int64_t>(mask._version());
  const c10::StorageImpl* const storage = mask.storage().unsafeGetStorageImpl();
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(
        known_, [](const Known& each) { return each.storage.expired(); });
    for (const Known& each : known_) {
      if (each.storage._unsafe_get_target() == storage &&
          each.offset == mask.storage_offset() && each.version == version &&
          each.sizes == mask.sizes() && each.strides == mask.strides())
        return each.is_causal;
    }
  }
  const at::Tensor num_causal = at::full(
      {1}, is_causal_here(mask, sequence) ? 1 : 0, at::dtype(at::kLong));
  if (sequence.group.size() > 1) sequence.group.all_reduce(num_causal);
  const bool is_causal =
      num_causal.item<std::int64_t>() == sequence.group.size();
  const std::lock_guard lock(mutex_);
  if (known_.size() == kMostKnown) known_.erase(known_.begin());
  known_.push_back(
      {mask.unsafeGetTensorImpl()->unsafe_storage().getWeakStorageImpl(),
       mask.storage_offset(),
       version,
       mask.sizes().vec(),
       mask.strides().vec(),
       is_causal});
  return is_causal;
}

}  // namespace accelerate::detail
