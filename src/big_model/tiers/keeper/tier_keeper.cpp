#include "big_model/tiers/keeper/tier_keeper.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "big_model/model/module_tensor.h"
#include "gate/first_of.h"

namespace accelerate::detail {

namespace {

using Clock = std::chrono::steady_clock;

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

}  // namespace

TierKeeper::TierKeeper(KeptWeights weights, TierOptions options)
    : weights_(std::move(weights)),
      options_(std::move(options)),
      gates_(weights_.tensors.size()),
      units_(weights_.units.size()),
      order_(weights_.units.size()),
      pins_(weights_.units.size()) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < weights_.tensors.size(); ++i)
    gates_[i] = make_gate(i);
  std::uint64_t largest = 0;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const auto& tensors = weights_.units[i].tensors;
    units_[i].is_instant =
        std::all_of(tensors.begin(), tensors.end(), [&](std::size_t each) {
          return is_ready_on_host(weights_.tensors[each]);
        });
    largest = std::max(largest, bytes_of_unit(i));
  }
  if (options_.memory == 0) options_.memory = 2 * largest;
  thread_ = std::thread([this] { work(); });
}

TierKeeper::~TierKeeper() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  queue_.notify_all();
  thread_.join();
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
              "read or change it inside of align_module_device()",
              kept.name),
          .afterwards = format(
              "[big_model] {} was offloaded, and what dispatched its model no "
              "longer exists: keep the dispatched model, or call its release() "
              "first",
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
    if (options_.before_first && bytes_in_memory_ == 0) {
      lock.unlock();
      options_.before_first();
      lock.lock();
    }
    const std::int64_t surprises = order_.num_surprises();
    order_.note(unit);
    stats_.num_surprises += order_.num_surprises() - surprises;
    current_ = unit;
  }
  if (is_new || units_[unit].state != State::fetched) plan_fetches();
  await(unit, lock);
  wait_for_arrival(unit);
  if (!units_[unit].fills_tensors) fill(unit);
}

// Makes the current stream wait, not this thread.
void TierKeeper::wait_for_arrival(std::size_t unit) {
  std::shared_ptr<c10::Event>& arrival = units_[unit].fetched.arrival;
  if (arrival == nullptr) return;
  const c10::Device device = device_of_unit(unit);
  const c10::impl::VirtualGuardImpl guard(device.type());
  arrival->block(guard.getStream(device));
  if (arrival->query()) arrival = nullptr;
}

void TierKeeper::await(std::size_t unit, Lock& lock) {
  Unit& own = units_[unit];
  if (own.is_instant && own.state != State::fetched) {
    // Reads nothing.
    DeviceCopies copies;
    own.fetched = fetch(requests_for({unit}), copies).front();
    own.state = State::fetched;
    return;
  }
  if (own.state == State::fetched) return;
  const auto start = Clock::now();
  if (own.state == State::absent) fetch_or_queue(unit, lock);
  done_.wait(lock, [&] { return own.state == State::fetched || own.failure; });
  ++stats_.num_waits;
  stats_.wait_seconds +=
      std::chrono::duration<double>(Clock::now() - start).count();
  // Every waiting thread fails; the next fetch clears the failure.
  if (own.failure) std::rethrow_exception(own.failure);
}

void TierKeeper::fill(std::size_t unit) {
  Unit& own = units_[unit];
  const auto& tensors = weights_.units[unit].tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (gates_[tensors[i]] == nullptr) continue;
    use_on_current_stream(own.fetched.values[i]);
    gates_[tensors[i]]->fill(own.fetched.values[i]);
  }
  own.fills_tensors = true;
}

std::vector<const OffloadedTensor*> TierKeeper::tensors_of(
    std::size_t unit) const {
  std::vector<const OffloadedTensor*> tensors;
  for (const std::size_t tensor : weights_.units[unit].tensors)
    tensors.push_back(&weights_.tensors[tensor]);
  return tensors;
}

c10::Device TierKeeper::device_of_unit(std::size_t unit) const {
  return weights_.tensors[weights_.units[unit].tensors.front()].device;
}

DispatchStats TierKeeper::stats() const {
  const std::lock_guard lock(mutex_);
  DispatchStats stats = stats_;
  stats.bytes = bytes_in_memory_;
  return stats;
}

}  // namespace accelerate::detail
