#include "big_model/tiers/tier_keeper.h"

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
#include "big_model/tiers/mapped_units.h"
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
      order_(weights_.units.size()) {
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

std::uint64_t TierKeeper::bytes_of_unit(std::size_t unit) const {
  return units_[unit].is_instant ? 0 : weights_.units[unit].num_bytes;
}

// The tensor's memory, if it has some, is dropped: it is in the source.
std::unique_ptr<GatedTensor> TierKeeper::make_gate(std::size_t tensor) {
  const OffloadedTensor& kept = weights_.tensors[tensor];
  // A tensor with memory would stay on that memory's device.
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
  pin(unit);
  try {
    use(unit, lock);
  } catch (const std::exception&) {
    unpin_all();
    throw;
  }
}

bool TierKeeper::begin_use(std::size_t tensor) {
  Lock lock(mutex_);
  if (gates_[tensor] == nullptr) return false;
  const std::size_t unit = weights_.tensors[tensor].unit;
  const bool is_new = pin(unit);
  try {
    use(unit, lock);
  } catch (const std::exception&) {
    if (is_new) unpin(unit);
    throw;
  }
  return is_new;
}

void TierKeeper::end_use(std::size_t tensor) {
  const std::lock_guard lock(mutex_);
  unpin(weights_.tensors[tensor].unit);
}

void TierKeeper::call(GatedCall& call) {
  struct Unpin {
    TierKeeper& keeper;
    ~Unpin() {
      const std::lock_guard lock(keeper.mutex_);
      keeper.unpin_all();
    }
  } const unpin_afterwards{*this};
  require_no_write(call);
  if (options_.moves_inputs) {
    if (const auto tensor = first_tensor_of(as_list(call.arguments()), *this))
      call.move_to(weights_.tensors[*tensor].device);
  }
  call.run();
}

void TierKeeper::require_no_write(GatedCall& call) const {
  const auto& schema = call.operation().schema().arguments();
  const auto arguments = call.arguments();
  for (std::size_t i = 0; i < schema.size(); ++i) {
    const auto* const alias = schema[i].alias_info();
    if (alias == nullptr || !alias->isWrite()) continue;
    if (!first_tensor_of(arguments[i], *this)) continue;
    throw Error(format(
        "[big_model] {} would change an offloaded weight, whose change would "
        "be "
        "lost; change it inside of align_module_device(), or leave it out of "
        "the optimizer",
        call.operation().operator_name().name));
  }
}

// The unit is pinned.
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

// The stream that computes waits, not this thread.
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
    // Nothing is read.
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
  // Every thread that waits for it fails; the next fetch clears it.
  if (own.failure) std::rethrow_exception(own.failure);
}

bool TierKeeper::is_fetched_when_used(std::size_t unit) {
  Unit& own = units_[unit];
  if (!own.is_cached) own.is_cached = can_fetch_at_once(tensors_of(unit));
  return own.is_cached;
}

// For a unit that is not fetched ahead of time. The page cache may have dropped
// it since that was decided.
void TierKeeper::fetch_or_queue(std::size_t unit, Lock& lock) {
  Unit& own = units_[unit];
  own.is_cached = false;
  own.state = State::fetching;
  count_memory(bytes_of_unit(unit));
  const std::vector<const OffloadedTensor*> tensors = tensors_of(unit);
  std::optional<FetchedUnit> fetched;
  lock.unlock();
  try {
    const at::NoGradGuard no_grad;
    fetched = fetch_at_once(tensors);
  } catch (const std::exception&) {
    // The thread that fetches says what is wrong.
  }
  lock.lock();
  if (fetched) {
    arrive(unit, std::move(*fetched));
  } else {
    bytes_in_memory_ -= bytes_of_unit(unit);
    own.state = State::queued;
    to_fetch_.push_front(unit);
    queue_.notify_one();
  }
  done_.notify_all();
}

void TierKeeper::count_memory(std::uint64_t num_bytes) {
  bytes_in_memory_ += num_bytes;
  stats_.peak_bytes = std::max(stats_.peak_bytes, bytes_in_memory_);
}

void TierKeeper::arrive(std::size_t unit, FetchedUnit fetched) {
  Unit& own = units_[unit];
  own.fetched = std::move(fetched);
  own.failure = nullptr;
  own.state = State::fetched;
  ++stats_.num_fetches;
  stats_.fetched_bytes += bytes_of_unit(unit);
  stats_.mapped_bytes += own.fetched.mapped_bytes;
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

// Evicts what is not expected next, and asks for what is.
void TierKeeper::plan_fetches() {
  const std::size_t current = *current_;
  std::vector<bool> is_kept(units_.size(), options_.keeps_fetched);
  std::vector<std::size_t> wanted;
  std::uint64_t sum = 0;
  const auto is_missing = [&](std::size_t unit) {
    const State state = units_[unit].state;
    return !units_[unit].is_instant &&
        (state == State::absent || state == State::queued);
  };
  const auto want = [&](std::size_t unit) {
    if (!is_missing(unit)) return;
    units_[unit].failure = nullptr;
    if (!is_fetched_when_used(unit)) wanted.push_back(unit);
  };
  want(current);
  for (std::size_t i = 0; i < units_.size(); ++i) {
    if (i != current && units_[i].num_pins == 0) continue;
    is_kept[i] = true;
    sum += bytes_of_unit(i);
    // Another thread waits for it.
    if (i != current && is_missing(i)) wanted.push_back(i);
  }
  order_.upcoming([&](std::size_t next) {
    if (is_kept[next] && !options_.keeps_fetched) return true;
    if (!options_.keeps_fetched && sum + bytes_of_unit(next) > options_.memory)
      return false;
    if (std::find(wanted.begin(), wanted.end(), next) == wanted.end())
      want(next);
    is_kept[next] = true;
    sum += bytes_of_unit(next);
    return true;
  });
  for (std::size_t i = 0; i < units_.size(); ++i) {
    if (units_[i].state == State::queued) units_[i].state = State::absent;
    if (!is_kept[i] && units_[i].state == State::fetched) evict(i);
  }
  for (const std::size_t unit : wanted) {
    units_[unit].state = State::queued;
    // It is tried again, even if a fetch ahead of time has failed.
    units_[unit].failure = nullptr;
  }
  to_fetch_.assign(wanted.begin(), wanted.end());
  if (!to_fetch_.empty()) queue_.notify_one();
}

void TierKeeper::evict(std::size_t unit) {
  Unit& own = units_[unit];
  if (own.fills_tensors) {
    for (const std::size_t tensor : weights_.units[unit].tensors) {
      if (gates_[tensor] != nullptr && gates_[tensor]->is_filled())
        gates_[tensor]->release();
    }
  }
  own.fills_tensors = false;
  own.state = State::absent;
  own.fetched.values.clear();
  pool_of(unit).give_back(std::move(own.fetched.buffer));
  own.fetched = {};
  if (current_ == unit) current_.reset();
  if (own.is_instant) return;
  bytes_in_memory_ -= bytes_of_unit(unit);
  if (const c10::Device device = device_of_unit(unit); !device.is_cpu())
    leaving_.add(device, bytes_of_unit(unit));
  // Buffers are a little larger than what lies in them.
  const std::uint64_t left = options_.memory > bytes_in_memory_
      ? options_.memory - bytes_in_memory_
      : 0;
  trim_pools(left + left / 16);
}

c10::Device TierKeeper::device_of_unit(std::size_t unit) const {
  return weights_.tensors[weights_.units[unit].tensors.front()].device;
}

// Units are computed with on one device each.
BufferPool& TierKeeper::pool_of(std::size_t unit) {
  return device_of_unit(unit).is_cpu() ? buffers_ : pinned_buffers_;
}

void TierKeeper::trim_pools(std::uint64_t num_bytes) {
  buffers_.trim(num_bytes);
  pinned_buffers_.trim(num_bytes);
}

// Returns false if this thread has pinned the unit already.
bool TierKeeper::pin(std::size_t unit) {
  std::vector<std::size_t>& pins = pinned_[std::this_thread::get_id()];
  if (std::find(pins.begin(), pins.end(), unit) != pins.end()) return false;
  pins.push_back(unit);
  ++units_[unit].num_pins;
  return true;
}

// An operator that ended meanwhile may have unpinned it.
void TierKeeper::unpin(std::size_t unit) {
  const auto found = pinned_.find(std::this_thread::get_id());
  if (found == pinned_.end()) return;
  std::vector<std::size_t>& pins = found->second;
  const auto place = std::find(pins.begin(), pins.end(), unit);
  if (place == pins.end()) return;
  pins.erase(place);
  --units_[unit].num_pins;
  if (pins.empty()) pinned_.erase(found);
}

void TierKeeper::unpin_all() {
  const auto found = pinned_.find(std::this_thread::get_id());
  if (found == pinned_.end()) return;
  for (const std::size_t unit : found->second) --units_[unit].num_pins;
  pinned_.erase(found);
}

bool TierKeeper::is_pinned_by_others(std::size_t unit) const {
  const auto found = pinned_.find(std::this_thread::get_id());
  const bool is_own = found != pinned_.end() &&
      std::find(found->second.begin(), found->second.end(), unit) !=
          found->second.end();
  return units_[unit].num_pins > (is_own ? 1 : 0);
}

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
  // A fetch reads the source that may change here.
  Unit& unit = units_[weights_.tensors[tensor].unit];
  done_.wait(lock, [&] { return unit.state != State::fetching; });
  const BypassGates bypass;
  const at::NoGradGuard no_grad;
  OffloadedTensor& kept = weights_.tensors[tensor];
  const at::Tensor value = kept.tensor.variable_data();
  const bool is_source =
      kept.source.host.defined() && value.is_alias_of(kept.source.host);
  // Files and tensors of others stay as they are: a changed weight is in memory
  // of the keeper's own from now on.
  if (!is_source && !fetch_now(kept).to(value.device()).equal(value))
    kept.source = {.host = on_host(value, kept.device)};
  gates_[tensor] = make_gate(tensor);
  // What the unit has is older, and it may have to be copied from now on.
  if (unit.state == State::fetched && unit.num_pins == 0) evict(kept.unit);
}

void TierKeeper::evict_all() {
  Lock lock(mutex_);
  to_fetch_.clear();
  for (std::size_t i = 0; i < units_.size(); ++i) {
    units_[i].is_cached = false;
    if (units_[i].state == State::queued) units_[i].state = State::absent;
    done_.wait(lock, [&] { return units_[i].state != State::fetching; });
    if (units_[i].state == State::fetched && !is_pinned_by_others(i)) evict(i);
  }
  buffers_.clear();
  pinned_buffers_.clear();
  done_.wait(lock, [&] { return !is_reading_ || !to_fetch_.empty(); });
  if (!is_reading_) reader_.clear();
}

void TierKeeper::release_all() {
  evict_all();
  for (std::size_t i = 0; i < weights_.tensors.size(); ++i)
    hold(i, std::nullopt);
}

DispatchStats TierKeeper::stats() const {
  const std::lock_guard lock(mutex_);
  DispatchStats stats = stats_;
  stats.bytes = bytes_in_memory_;
  return stats;
}

}  // namespace accelerate::detail
