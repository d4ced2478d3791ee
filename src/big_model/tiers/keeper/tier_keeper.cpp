#include "big_model/tiers/keeper/tier_keeper.h"

#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "base/text/text.h"
#include "big_model/model/module_tensor.h"
#include "gate/first_of.h"

namespace accelerate::detail {

namespace {

c10::ArrayRef<c10::IValue> as_list(std::span<const c10::IValue> values) {
  return c10::ArrayRef<c10::IValue>(values.data(), values.size());
}

std::optional<std::size_t> first_tensor_of(
    c10::ArrayRef<c10::IValue> values,
    const GateKeeper& keeper) {
  return first_of(values, [&](const c10::IValue& value) {
    return GatedTensor::unit_of(value, keeper);
  });
}

void use_on_current_stream(const at::Tensor& tensor) {
  if (tensor.device().is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(tensor.device().type());
  guard.recordDataPtrOnStream(
      tensor.storage().data_ptr(), guard.getStream(tensor.device()));
}

// Makes the current stream wait, not this thread.
void wait_for_arrival(FetchedUnit& fetched, c10::Device device) {
  if (fetched.arrival == nullptr) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  fetched.arrival->block(guard.getStream(device));
  if (fetched.arrival->query()) fetched.arrival = nullptr;
}

}  // namespace

TierKeeper::TierKeeper(KeptWeights weights, TierOptions options)
    : weights_(std::move(weights)),
      options_(std::move(options)),
      units_(weights_, options_.memory, options_.keeps_fetched),
      gates_(weights_.tensors.size()),
      fills_tensors_(units_.size()),
      order_(units_.size()),
      pins_(units_.size()),
      fetcher_(units_, mutex_) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < weights_.tensors.size(); ++i)
    gates_[i] = make_gate(i);
}

// Drops the tensor's memory, if any: the values are in the source.
std::unique_ptr<GatedTensor> TierKeeper::make_gate(std::size_t tensor) {
  const OffloadedTensor& kept = weights_.tensors[tensor];
  // A tensor with memory would stay on the device of that memory.
  if (!kept.tensor.is_meta() && kept.tensor.device() != kept.device) {
    replace_in_place(
        kept.tensor,
        at::empty_strided(
            kept.tensor.sizes(),
            kept.tensor.strides(),
            kept.tensor.options().device(at::kMeta).requires_grad(false)));
  }
  auto gate = std::make_unique<GatedTensor>(
      kept.tensor,
      UnavailableMessages{
          .while_kept = format(
              "[big_model] {} is offloaded and has no memory between forwards; "
              "read or change it inside align_module_device()",
              kept.name),
          .afterwards = format(
              "[big_model] {} is offloaded, but the Dispatch of its model no "
              "longer exists: keep the dispatched model, or "
              "call its release() first",
              kept.name)},
      *this,
      tensor,
      kept.device);
  if (gate->is_filled()) gate->release();
  return gate;
}

void TierKeeper::before_read(std::size_t tensor, bool /*is_filled*/) {
  Lock lock(mutex_);
  if (gates_[tensor] == nullptr) return;
  const std::size_t unit = weights_.tensors[tensor].unit;
  pins_.pin(unit);
  try {
    use(unit, lock);
  } catch (const std::exception&) {
    pins_.unpin_all();
    throw;
  }
}

bool TierKeeper::begin_use(std::size_t tensor) {
  Lock lock(mutex_);
  if (gates_[tensor] == nullptr) return false;
  const std::size_t unit = weights_.tensors[tensor].unit;
  const bool is_new = pins_.pin(unit);
  try {
    use(unit, lock);
  } catch (const std::exception&) {
    if (is_new) pins_.unpin(unit);
    throw;
  }
  return is_new;
}

void TierKeeper::end_use(std::size_t tensor) {
  const std::lock_guard lock(mutex_);
  pins_.unpin(weights_.tensors[tensor].unit);
}

void TierKeeper::call(GatedCall& call) {
  struct Unpin {
    TierKeeper& keeper;
    ~Unpin() {
      const std::lock_guard lock(keeper.mutex_);
      keeper.pins_.unpin_all();
    }
  } const unpin_afterwards{*this};
  const std::vector<std::size_t> written = written_by(call);
  for (const std::size_t tensor : written) begin_write(tensor);
  if (options_.moves_inputs) {
    if (const auto tensor = first_tensor_of(as_list(call.arguments()), *this))
      call.move_to(weights_.tensors[*tensor].device);
  }
  call.run();
  for (const std::size_t tensor : written) end_write(tensor);
}

// The unit must be pinned.
void TierKeeper::use(std::size_t unit, Lock& lock) {
  const bool is_new = current_ != unit;
  if (is_new) {
    if (options_.before_first && units_.memory().bytes() == 0) {
      lock.unlock();
      options_.before_first();
      lock.lock();
    }
    order_.note(unit);
    current_ = unit;
  }
  if (is_new || units_.state(unit) != State::fetched) plan_fetches();
  fetcher_.await(unit, lock);
  wait_for_arrival(units_.fetched(unit), units_.device_of(unit));
  if (!fills_tensors_[unit]) fill(unit);
}

void TierKeeper::fill(std::size_t unit) {
  const FetchedUnit& fetched = units_.fetched(unit);
  const auto& tensors = weights_.units[unit].tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (gates_[tensors[i]] == nullptr) continue;
    use_on_current_stream(fetched.values[i]);
    gates_[tensors[i]]->fill(fetched.values[i]);
  }
  fills_tensors_[unit] = true;
}

DispatchStats TierKeeper::stats() const {
  const std::lock_guard lock(mutex_);
  DispatchStats stats = fetcher_.stats();
  stats.bytes = units_.memory().bytes();
  stats.peak_bytes = units_.memory().peak_bytes();
  stats.num_surprises = order_.num_surprises();
  return stats;
}

}  // namespace accelerate::detail
