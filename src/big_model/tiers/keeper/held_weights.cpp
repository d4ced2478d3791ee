// Weights held in memory for as long as the program wants.
#include <optional>

#include <ATen/core/grad_mode.h>

#include "big_model/model/module_tensor.h"
#include "big_model/tiers/keeper/tier_keeper.h"

namespace accelerate::detail {

bool TierKeeper::is_offloaded(std::size_t tensor) const {
  const std::lock_guard lock(mutex_);
  return gates_[tensor] != nullptr;
}

void TierKeeper::hold(std::size_t tensor, std::optional<c10::Device> device) {
  const std::lock_guard lock(mutex_);
  if (gates_[tensor] == nullptr) return;
  const BypassGates bypass;
  const at::NoGradGuard no_grad;
  const OffloadedTensor& kept = weights_.tensors[tensor];
  at::Tensor value = fetch_now(kept);
  if (kept.source.is_borrowed && value.is_alias_of(kept.source.host))
    value = value.clone();
  if (gates_[tensor]->is_filled()) gates_[tensor]->release();
  gates_[tensor]->fill(value);
  gates_[tensor].reset();
  if (device && *device != kept.device)
    replace_in_place(kept.tensor, value.to(*device));
}

void TierKeeper::put_back(std::size_t tensor) {
  Lock lock(mutex_);
  if (gates_[tensor] != nullptr) return;
  // A fetch in progress reads the source, which may change below.
  fetcher_.finish(weights_.tensors[tensor].unit, lock);
  const BypassGates bypass;
  const at::NoGradGuard no_grad;
  OffloadedTensor& kept = weights_.tensors[tensor];
  const at::Tensor value = kept.tensor.variable_data();
  const bool is_source =
      kept.source.host.defined() && value.is_alias_of(kept.source.host);
  // Files and the caller's tensors are never written to: a changed weight gets
  // host memory of its own.
  if (!is_source && !fetch_now(kept).to(value.device()).equal(value))
    kept.source = {.host = on_host(value, kept.device)};
  gates_[tensor] = make_gate(tensor);
  // The unit holds the old value, and may need a copy from now on.
  if (units_.state(kept.unit) == State::fetched && !pins_.is_pinned(kept.unit))
    evict(kept.unit);
}

void TierKeeper::release_all() {
  evict_all();
  for (std::size_t i = 0; i < weights_.tensors.size(); ++i)
    hold(i, std::nullopt);
}

}  // namespace accelerate::detail
